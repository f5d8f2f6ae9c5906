"""benchmarks/block_store.py: measurements and results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from block_store import block_store
from lib.command import main


def test_a_folder_that_is_not_there_is_made_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    words = ["--mib", "2", "--block-kib", "256", "--group-mib", "1", "--rounds", "2"]
    with pytest.raises(SystemExit) as left:
        main(block_store, [str(tmp_path / "disk"), *words, "--out", str(tmp_path)])
    assert left.value.code == 0
    assert list((tmp_path / "disk").iterdir()) == []
    found = json.loads((tmp_path / "block-store.json").read_text())
    assert found["machine"]["processor"]
    assert all(found["of_file"][way]["median"] > 0 for way in ("new", "again")), found["of_file"]

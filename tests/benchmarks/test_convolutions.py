"""benchmarks/convolutions.py measures the same network by both libraries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import convolutions


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_torchs_copy_has_the_same_parameters_and_results() -> None:
    network, images = convolutions.network_of("cifar10")
    theirs = convolutions.by_torch(network)
    kinds = {type(part).__module__.split(".")[0] for part in theirs.modules() if "Local" not in str(part)}
    assert kinds == {"torch"}
    assert theirs.state_dict().keys() == network.state_dict().keys()
    torch.testing.assert_close(network.eval()(images), theirs.eval()(images), rtol=1e-4, atol=1e-5)


def test_rows_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--rounds", "1", "--threads", "1", "--recipe", "adam-mnist", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["convolutions.py", *words])
    monkeypatch.setattr(convolutions, "keep_freed_memory", lambda: None)  # it would outlive the test
    convolutions.main()
    found = json.loads((tmp_path / "convolutions.json").read_text())
    assert [row["what"].split("(")[0] for row in found["rows"]] == [
        *("0 Conv2d", "1 MaxPool2d", "4 Conv2d", "5 MaxPool2d", "step")
    ]
    for row in found["rows"]:
        assert set(row["milliseconds"]) == {"cotswold", "nchw", "channels_last"}
        assert row["best"] in ("nchw", "channels_last")
    assert len(capsys.readouterr().out.splitlines()) == 6

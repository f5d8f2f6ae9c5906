"""Killed, damaged or modified preparations: resumed, or refused with a reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.data.conftest import KILLED, files, write_photographs
from tests.data.test_prepare import SMALL
from tests.warm import PYTHON

from cotswold.data import Store, open_source, prepare, verify_store
from cotswold.errors import CotswoldError, MachineError, StoreError, UserError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_photographs(folder, 60)
    return folder


@pytest.fixture(scope="module")
def killed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the remains of a kill after two of four shards."""
    path = tmp_path_factory.mktemp("killed") / "s"
    subprocess.run([*PYTHON, "-c", KILLED, str(source), str(path), "2"], check=False)
    return path


@pytest.fixture
def unfinished(killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 16)
    shutil.copytree(killed, tmp_path / "s")
    return tmp_path / "s"


@pytest.mark.parametrize("left", [[], ["request.json.partial"], ["request.json.4711.partial"]])
def test_a_kill_before_the_request_is_written_leaves_nothing_in_the_way(
    left: list[str], source: Path, tmp_path: Path
) -> None:
    (tmp_path / "s" / ".preparing").mkdir(parents=True)
    for name in left:
        (tmp_path / "s" / ".preparing" / name).write_text("")
    prepare(open_source(source), tmp_path / "s", SMALL, jobs=1)
    assert verify_store(tmp_path / "s") == []
    assert not (tmp_path / "s" / ".preparing").exists()


def test_something_else_beside_what_a_kill_leaves_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "s" / ".preparing").mkdir(parents=True)
    (tmp_path / "s" / ".preparing" / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="neither empty nor a store"):
        prepare(open_source(source), tmp_path / "s", SMALL, jobs=1)
    assert (tmp_path / "s" / ".preparing" / "thesis.tex").read_text() == "precious"


def test_a_kill_between_the_manifest_and_the_end_leaves_a_whole_store(source: Path, tmp_path: Path) -> None:
    whole = prepare(open_source(source), tmp_path / "s", SMALL, jobs=1)
    (tmp_path / "s" / ".preparing").mkdir()
    (tmp_path / "s" / ".preparing" / "request.json").write_text("{}")
    assert prepare(open_source(source), tmp_path / "s", SMALL, jobs=1).identity == whole.identity
    assert not (tmp_path / "s" / ".preparing").exists()


def test_what_a_kill_left_half_written_is_swept_up(unfinished: Path, source: Path, tmp_path: Path) -> None:
    (unfinished / "arrays/train/samples/c/0/0/0/0.4711.partial").write_bytes(b"half")
    resumed = prepare(open_source(source), unfinished, SMALL, jobs=1)
    assert resumed.reused == 2 * 16
    prepare(open_source(source), tmp_path / "whole", SMALL, jobs=1)
    assert files(unfinished) == files(tmp_path / "whole")


@pytest.mark.parametrize("name", ["request.json", "transform.json"])
@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 200_000, '{"whitening": 3}'])
def test_a_damaged_journal_is_refused_in_a_sentence(
    name: str, text: str, unfinished: Path, source: Path
) -> None:
    (unfinished / ".preparing" / name).write_text(text)
    with pytest.raises(CotswoldError, match=rf"{name}|differs in"):
        prepare(open_source(source), unfinished, SMALL, jobs=1)


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "null",
        "{",
        "{}",
        "[" * 100_000,
        json.dumps({"key": "../../precious", "bytes": 8, "crc": 0, "broken": {}}),
        json.dumps({"key": "arrays/train/samples/c/3/0/0/0", "bytes": "8", "crc": 0, "broken": {}}),
        json.dumps({"key": "arrays/train/samples/c/3/0/0/0", "bytes": 8, "crc": 0, "broken": {"x": "y"}}),
        json.dumps({"key": "arrays/train/samples/c/3/0/0/0", "bytes": 8, "crc": 0, "broken": {"99": "y"}}),
    ],
    ids=range(9),
)
def test_a_line_of_the_journal_about_no_shard_does_not_count(
    line: str, unfinished: Path, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious")
    with (unfinished / ".preparing" / "shards.jsonl").open("a") as file:
        file.write(line + "\n")
    assert prepare(open_source(source), unfinished, SMALL, jobs=1).reused == 2 * 16
    assert Store(unfinished).splits == {"train": 57, "validation": 3}


def at_journal(name: str) -> Callable[[Path, Path], None]:
    def link(store: Path, elsewhere: Path) -> None:
        (store / ".preparing" / name).unlink(missing_ok=True)
        (store / ".preparing" / name).symlink_to(elsewhere)

    return link


def at_next_shard(store: Path, elsewhere: Path) -> None:
    place = store / "arrays/train/samples/c/3/0/0"
    place.mkdir(parents=True)
    (place / "0").symlink_to(elsewhere)
    (place / "partial").symlink_to(elsewhere)


def at_pixels(store: Path, elsewhere: Path) -> None:
    (store / ".preparing" / "train-0.pixels").unlink(missing_ok=True)
    (store / ".preparing" / "train-0.pixels").symlink_to(elsewhere)
    (store / ".preparing" / "transform.json").unlink()
    (store / ".preparing" / "shards.jsonl").unlink()


@pytest.mark.parametrize(
    "link",
    [*map(at_journal, ("request.json", "transform.json", "shards.jsonl")), at_next_shard, at_pixels],
    ids=["request", "transform", "lines", "shard", "pixels"],
)
def test_nothing_is_written_through_a_link_in_an_unfinished_store(
    link: Callable[[Path, Path], None], unfinished: Path, source: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "thesis.tex"
    elsewhere.write_text("chapter one\n" * 100)
    link(unfinished, elsewhere)
    try:
        prepare(open_source(source), unfinished, SMALL, jobs=1)
    except (StoreError, MachineError) as error:
        assert "symbolic link" in str(error)  # noqa: PT017  # either is right; what matters is the file
    assert elsewhere.read_text() == "chapter one\n" * 100


@pytest.mark.parametrize("folder", [".preparing", "arrays", "arrays/train"])
def test_no_folder_of_an_unfinished_store_may_be_a_link(
    folder: str, unfinished: Path, source: Path, tmp_path: Path
) -> None:
    shutil.move(unfinished / folder, tmp_path / "elsewhere")
    (unfinished / folder).symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path / "elsewhere")
    with pytest.raises(CotswoldError, match="symbolic link"):
        prepare(open_source(source), unfinished, SMALL, jobs=1)
    assert files(tmp_path / "elsewhere") == before


def test_a_place_that_cannot_be_written_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Path, *arguments: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(MachineError, match="s cannot be written: Permission denied"):
        prepare(open_source(source), tmp_path / "s", SMALL, jobs=1)
    assert not os.path.lexists(tmp_path / "s")

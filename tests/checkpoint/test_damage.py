"""A damaged checkpoint is skipped and named, and the previous one is found."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from cotswold.checkpoint import Checkpoint, CheckpointManager, Latest
from cotswold.errors import CheckpointError, MismatchError

TENSORS = {"w": torch.arange(6.0).reshape(2, 3), "random": torch.arange(5, dtype=torch.uint8)}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.integers(-(2**90), 2**90)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["../x.safetensors", "/etc/passwd", "00000.safetensors", "float32", "a\0b", "-1"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with checkpoints of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("original")
    for step in (1, 2):
        CheckpointManager(folder).save(step, TENSORS, {"step": step})
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """Return a copy of the original folder."""
    return Path(shutil.copytree(original, tmp_path / "checkpoints"))


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "00000002" / "manifest.json").read_text())
    return found


def sealed(folder: Path, content: dict[str, Any]) -> None:
    """Write a manifest with a valid checksum and any contents."""
    content.pop("crc32", None)
    seal = f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
    (folder / "00000002" / "manifest.json").write_text(json.dumps({"crc32": seal, **content}))


def read_all(checkpoint: Checkpoint) -> None:
    """Read a checkpoint like a run."""
    for name, tensor in TENSORS.items():
        checkpoint.read_into(name, torch.empty_like(tensor))
    checkpoint.tensors()


def found_in(folder: Path) -> Latest:
    return CheckpointManager(folder).latest(read_all)


def went_back(folder: Path) -> str:
    """Return the reason why the checkpoint of step 2 is rejected; fail unless that of step 1 is found."""
    found = found_in(folder)
    assert found.checkpoint is not None and found.checkpoint.step == 1
    (said,) = found.skipped
    return said


TEXTS = ["", "[]", "null", "3", "{}", "[" * 200_000, '{"a":' * 200_000, "9" * 9999, '{"crc32": []}', "\udcff"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_manifest_that_is_none_is_passed_over(folder: Path, text: str) -> None:
    (folder / "00000002" / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "00000002/manifest.json is damaged: " in went_back(folder)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "an unknown key of a piece": lambda all: all["pieces"][0].update(codec="zstd"),
    "a missing key": lambda all: all["pieces"][0].pop("crc32"),
    "a piece that is none": lambda all: all["pieces"].append([]),
    "a file in another folder": lambda all: all["pieces"][0].update(file="../00000001/00000.safetensors"),
    "a file of the system": lambda all: all["pieces"][0].update(file="/etc/passwd"),
    "a negative box": lambda all: all["pieces"][0].update(start=[-1, 0]),
    "a box beyond the whole": lambda all: all["pieces"][0].update(stop=[2, 4]),
    "a box of other dimensions": lambda all: all["pieces"][0].update(start=[0]),
    "a box that ends before it starts": lambda all: all["pieces"][0].update(start=[2, 3], stop=[1, 1]),
    "a whole that is larger than its pieces": lambda all: all["pieces"][0].update(shape=[3, 3]),
    "more values than memory": lambda all: all["pieces"][0].update(shape=[2**50, 3], stop=[2**50, 3]),
    "a number without end": lambda all: all["pieces"][0].update(shape=[10**300, 0], stop=[10**300, 0]),
    "an empty whole of endless rows": lambda all: all["pieces"][0].update(
        shape=[0, 2**70], start=[0, 0], stop=[0, 0]
    ),
    "a truth for a number": lambda all: all["pieces"][0].update(shape=[True, 3]),
    "a type that torch has not": lambda all: all["pieces"][0].update(dtype="float33"),
    "a function for a type": lambda all: all["pieces"][0].update(dtype="load"),
    "another type": lambda all: all["pieces"][0].update(dtype="float64"),
    "a smaller type": lambda all: all["pieces"][0].update(dtype="float16"),
    "two pieces of one place": lambda all: all["pieces"].append(dict(all["pieces"][0])),
    "no pieces": lambda all: all.update(pieces=[]),
    "no state": lambda all: all.pop("state"),
    "a state that is a list": lambda all: all.update(state=[]),
    "a step that is a text": lambda all: all.update(step="2"),
    "a negative step": lambda all: all.update(step=-2),
    "another format": lambda all: all.update(format=99),
    "no format": lambda all: all.pop("format"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_that_says_what_cannot_be_is_passed_over(folder: Path, change: str) -> None:
    content = manifest(folder)
    CHANGES[change](content)
    sealed(folder, content)
    assert "00000002" in went_back(folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(data=st.data())
def test_no_manifest_at_all_raises_anything_but_that_it_is_damaged(folder: Path, data: st.DataObject) -> None:
    content = json.loads((folder / "00000001" / "manifest.json").read_text())
    holder = data.draw(st.sampled_from([content, *content["pieces"], content["state"]]))
    key = data.draw(st.sampled_from([*sorted(holder), "more"]))
    holder[key] = data.draw(json_values)
    # the name of another run is no damage: its checkpoint stops everything, lest it be pruned as a newer one
    assume(not (key == "identity" and isinstance(holder[key], str) and holder[key]))
    sealed(folder, content)
    found = found_in(folder)  # the same content, or the one before
    assert found.checkpoint is not None and len(found.skipped) <= 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(
    name=st.sampled_from(["manifest.json", "00000.safetensors", "00001.safetensors"]),
    at=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    cut=st.booleans(),
)
@example(name="00000.safetensors", at=0.0, bit=7, cut=False)  # the length of the header
@example(name="00000.safetensors", at=0.04, bit=6, cut=False)
def test_a_flipped_bit_or_a_cut_anywhere_is_found(
    original: Path, folder: Path, name: str, at: float, bit: int, cut: bool
) -> None:
    content = bytearray((original / "00000002" / name).read_bytes())
    place = int(at * len(content))
    content[place] ^= 1 << bit
    (folder / "00000002" / name).write_bytes(content[:place] if cut else content)
    found = found_in(folder)
    (folder / "00000002" / name).write_bytes((original / "00000002" / name).read_bytes())
    assert found.checkpoint is not None
    if found.checkpoint.step == 2:  # a blank for another, or letters of another height in a checksum
        assert name == "manifest.json" and found.checkpoint.state == {"step": 2}
    else:
        assert name in found.skipped[0]


def test_what_is_no_file_is_passed_over_and_no_pipe_is_waited_for(folder: Path) -> None:
    for name in ("manifest.json", "00000.safetensors"):
        file = folder / "00000002" / name
        content = file.read_bytes()
        for make in (os.mkdir, os.mkfifo):
            file.unlink()
            make(file)
            assert f"{name} cannot be read: it is no regular file" in went_back(folder)
            file.rmdir() if file.is_dir() else file.unlink()
            file.write_bytes(content)


def test_a_folder_with_a_name_that_is_no_number_is_none_of_the_checkpoints(folder: Path) -> None:
    for name in ("\u00b2", "00000003-", "\u0663", "-1"):
        (folder / name).mkdir()
    found = CheckpointManager(folder).latest()
    assert found.checkpoint is not None and found.checkpoint.step == 2 and not found.skipped


def test_checkpoints_of_another_network_are_not_called_damaged(folder: Path) -> None:
    def take(checkpoint: Checkpoint) -> None:
        checkpoint.read_into("no such", torch.zeros(1))

    with pytest.raises(MismatchError, match=r"^[^;]*00000002 has no tensor no such[^;]*; [^;]*$"):
        CheckpointManager(folder).latest(take)


def test_a_checkpoint_that_its_user_cannot_take_is_passed_over(folder: Path) -> None:
    def take(checkpoint: Checkpoint) -> None:
        if checkpoint.step == 2:
            raise CheckpointError("it is of another shape")

    found = CheckpointManager(folder).latest(take)
    assert found.checkpoint is not None and found.checkpoint.step == 1
    assert found.skipped == ("it is of another shape",)

"""State dicts: division into chunks, restoring in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cotswold.checkpoint import (
    Checkpoint,
    CheckpointManager,
    OptionalTensor,
    SealedChunk,
    StateValue,
    TensorChunk,
    TensorPart,
)
from cotswold.checkpoint.state_dict import chunks, load, plain_values
from cotswold.errors import CheckpointError
from cotswold.geometry import Box


def saved(folder: Path, *states: dict[str, StateValue]) -> Checkpoint:
    """Save a checkpoint of ranks with these state dicts."""
    written: list[TensorChunk | SealedChunk] = []
    for rank, state in enumerate(states):
        written += chunks(state, rank)
    CheckpointManager(folder).save(1, written, {})
    found = CheckpointManager(folder).latest().checkpoint
    assert found is not None
    return found


def test_live_tensors_are_filled_in_place_and_plain_values_given_back(tmp_path: Path) -> None:
    state: dict[str, StateValue] = {"weight": torch.arange(6.0), "best": 0.5, "name": None}
    assert plain_values(state) == {"best": 0.5, "name": None}
    checkpoint = saved(tmp_path, state)
    weight = torch.zeros(6)
    view = weight.view(2, 3)
    loaded = load({"weight": weight, "best": 7.0, "name": "x"}, checkpoint, plain_values(state))
    assert loaded["weight"] is weight and loaded["best"] == 0.5 and loaded["name"] is None
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_ranks_write_their_parts_once_and_rank_0_what_all_have_alike(tmp_path: Path) -> None:
    def state(rank: int) -> dict[str, StateValue]:
        rows = Box((2 * rank, 0), (2 * rank + 2, 3))
        return {"w": TensorPart(torch.full((2, 3), float(rank)), rows, (4, 3)), "alpha": torch.tensor(2.0)}

    empty = TensorPart(torch.empty(0, 3), Box((4, 0), (4, 3)), (4, 3))
    checkpoint = saved(tmp_path, state(0), state(1), {"w": empty, "alpha": torch.tensor(2.0)})
    assert checkpoint.read("w")[:, 0].tolist() == [0, 0, 1, 1]
    assert len(checkpoint.records("w")) == 2 and len(checkpoint.records("alpha")) == 1
    other = TensorPart(torch.zeros(3, 3), Box((1, 0), (4, 3)), (4, 3))  # of another grid
    load({"w": other}, checkpoint, {})
    assert other.tensor[:, 0].tolist() == [0, 1, 1]


def test_what_a_checkpoint_may_lack_is_left_out_of_what_was_loaded(tmp_path: Path) -> None:
    checkpoint = saved(
        tmp_path, {"random": torch.ones(2), "random.cuda": OptionalTensor(torch.full((2,), 3.0))}
    )
    target = OptionalTensor(torch.zeros(2))
    assert load({"random.cuda": target}, checkpoint, {}) == {"random.cuda": target}
    assert target.tensor.tolist() == [3, 3]
    assert load({"other": target}, checkpoint, {}) == {}


class Rows:
    """A tensor that records the requested boxes."""

    def __init__(self) -> None:
        self.loaded: list[Checkpoint] = []

    def chunks(self) -> Iterator[SealedChunk]:
        return iter(())

    def load(self, checkpoint: Checkpoint) -> None:
        self.loaded.append(checkpoint)


def test_a_tensor_in_files_takes_itself_from_a_checkpoint(tmp_path: Path) -> None:
    rows = Rows()
    checkpoint = saved(tmp_path, {"rows": rows, "x": torch.ones(1)})
    assert load({"rows": rows}, checkpoint, {}) == {"rows": rows}
    assert rows.loaded == [checkpoint]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"y": torch.ones(1)}, "no tensor y"),
        ({"x": torch.ones(2)}, r"x is torch\.float32 \(1,\)"),
        ({"best": 1.0}, "has no value for best"),
        ({"listed": 1}, "no plain value for listed"),
    ],
)
def test_what_a_checkpoint_lacks_or_has_otherwise_is_named(
    tmp_path: Path, state: dict[str, StateValue], words: str
) -> None:
    checkpoint = saved(tmp_path, {"x": torch.ones(1)})
    with pytest.raises(CheckpointError, match=words):
        load(state, checkpoint, {"listed": [1]})

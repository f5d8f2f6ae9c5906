"""What a program keeps in a checkpoint: a dictionary of live values, as in torch.distributed.checkpoint.

Knows: which values become pieces, which rank writes them, how they are filled in place. Does not know: whose
values they are.

A state dict maps names to tensors, to parts of tensors, to tensors that are in files, and to plain values.
`load` fills the tensors in place, so that resuming needs no second copy of any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from cotswold.checkpoint.checkpoint import Checkpoint
from cotswold.checkpoint.piece_in_file import SealedPiece
from cotswold.checkpoint.shard_file import Piece
from cotswold.errors import CheckpointError
from cotswold.geometry import Box

Plain = None | bool | int | float | str
"""A value that is kept beside the tensors, as JSON."""


@dataclass(frozen=True)
class TensorPart:
    """What this rank has of a tensor of ``shape``: the live values in ``box``, maybe none."""

    tensor: Tensor
    box: Box
    shape: tuple[int, ...]


@dataclass(frozen=True)
class IfThere:
    """A tensor that checkpoints may lack; `load` then leaves its name out."""

    tensor: Tensor


class InFiles(Protocol):
    """A tensor whose values are in files in the format of pieces."""

    def pieces(self) -> Iterable[SealedPiece]:
        """All of its files, once everything is written to them."""
        ...

    def load(self, checkpoint: Checkpoint) -> None:
        """Take the values from a checkpoint, however they were written."""
        ...


StateValue = Tensor | TensorPart | IfThere | InFiles | Plain
StateDict = Mapping[str, StateValue]


def pieces(state: StateDict, rank: int = 0) -> Iterator[Piece | SealedPiece]:
    """What a rank writes: its parts and its files, and rank 0 the tensors that all ranks have alike."""
    for name, value in state.items():
        if isinstance(value, TensorPart):
            if value.tensor.numel():
                yield Piece(name, value.tensor, value.box, value.shape)
        elif isinstance(value, IfThere | Tensor):
            if rank == 0:
                yield Piece(name, value.tensor if isinstance(value, IfThere) else value)
        elif not isinstance(value, Plain):
            yield from value.pieces()


def plain(state: StateDict) -> dict[str, Plain]:
    """The values that are kept beside the tensors."""
    return {name: value for name, value in state.items() if isinstance(value, Plain)}


def load(state: StateDict, checkpoint: Checkpoint, kept: Mapping[str, object]) -> dict[str, StateValue]:
    """The state dict with its tensors filled in place from a checkpoint, and its plain values as in ``kept``.

    Raises CheckpointError where the checkpoint lacks one of them or has it in another shape or type.
    """
    loaded: dict[str, StateValue] = {}
    for name, value in state.items():
        if isinstance(value, TensorPart):
            checkpoint.read_into(name, value.tensor, value.box)
        elif isinstance(value, Tensor):
            checkpoint.read_into(name, value)
        elif isinstance(value, IfThere):
            if name not in checkpoint.names:
                continue
            checkpoint.read_into(name, value.tensor)
        elif not isinstance(value, Plain):
            value.load(checkpoint)
        if isinstance(value, Plain):
            loaded[name] = _plain(name, kept, checkpoint)
        else:
            loaded[name] = value
    return loaded


def _plain(name: str, kept: Mapping[str, object], checkpoint: Checkpoint) -> Plain:
    if name not in kept:
        raise CheckpointError(f"{checkpoint.path} says nothing of {name}; it is of another version")
    value = kept[name]
    if not isinstance(value, Plain):
        raise CheckpointError(f"{checkpoint.path} has no plain value for {name}; it is of another version")
    return value

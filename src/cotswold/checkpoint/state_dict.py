"""The contents of a program's checkpoint: a dictionary of live values, as in torch.distributed.checkpoint.

Knows: which values become chunks, which rank writes them, how to load them in place. Does not know: the
program.

A state dict maps names to tensors, parts of tensors, tensors in files, and plain values. `load` fills the
tensors in place, so resuming needs no second copy of any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from cotswold.checkpoint.checkpoint import Checkpoint
from cotswold.checkpoint.chunk_file import SealedChunk, TensorChunk
from cotswold.errors import CheckpointError
from cotswold.geometry import Box

JsonValue = None | bool | int | float | str
"""A value that is saved as JSON, next to the tensors."""


@dataclass(frozen=True)
class TensorPart:
    """This rank's part of a tensor that is divided among ranks.

    Args:
        tensor: Live values of the part; may be empty.
        box: Index ranges of the part in the whole tensor.
        shape: Shape of the whole tensor.
    """

    tensor: Tensor
    box: Box
    shape: tuple[int, ...]


@dataclass(frozen=True)
class OptionalTensor:
    """A tensor that a checkpoint may lack; then `load` leaves its name out.

    Args:
        tensor: Live values.
    """

    tensor: Tensor


class FileBackedTensor(Protocol):
    """Tensors that make and load their own chunks, such as files in the format of a checkpoint's chunks."""

    def chunks(self) -> Iterable[TensorChunk | SealedChunk]:
        """Return the chunks of this rank, after all writes to them; only rank 0 writes whole tensors."""
        ...

    def load(self, checkpoint: Checkpoint) -> None:
        """Load the values from a checkpoint, which any number of ranks may have written.

        Args:
            checkpoint: The checkpoint.
        """
        ...


StateValue = Tensor | TensorPart | OptionalTensor | FileBackedTensor | JsonValue
StateDict = Mapping[str, StateValue]


def chunks(state: StateDict, rank: int = 0) -> Iterator[TensorChunk | SealedChunk]:
    """Yield the chunks that a rank writes: its parts and files, and on rank 0 the replicated tensors."""
    for name, value in state.items():
        if isinstance(value, TensorPart):
            if value.tensor.numel():
                yield TensorChunk(name, value.tensor, value.box, value.shape)
        elif isinstance(value, OptionalTensor | Tensor):
            if rank == 0:
                yield TensorChunk(name, value.tensor if isinstance(value, OptionalTensor) else value)
        elif not isinstance(value, JsonValue):
            own = value.chunks()
            yield from (each for each in own if rank == 0 or not _is_whole(each))


def _is_whole(chunk: TensorChunk | SealedChunk) -> bool:
    """True for a replicated tensor, which every rank has whole."""
    return isinstance(chunk, TensorChunk) and chunk.box is None


def plain_values(state: StateDict) -> dict[str, JsonValue]:
    """Return the plain values of a state dict."""
    return {name: value for name, value in state.items() if isinstance(value, JsonValue)}


def load(state: StateDict, checkpoint: Checkpoint, kept: Mapping[str, object]) -> dict[str, StateValue]:
    """Load the tensors of a state dict in place from a checkpoint, and the plain values from ``kept``.

    Returns the state dict. Raises CheckpointError if the checkpoint lacks a value, or has it in another shape
    or type.
    """
    loaded: dict[str, StateValue] = {}
    for name, value in state.items():
        if isinstance(value, TensorPart):
            checkpoint.read_into(name, value.tensor, value.box)
        elif isinstance(value, Tensor):
            checkpoint.read_into(name, value)
        elif isinstance(value, OptionalTensor):
            if name not in checkpoint.names:
                continue
            checkpoint.read_into(name, value.tensor)
        elif not isinstance(value, JsonValue):
            value.load(checkpoint)
        if isinstance(value, JsonValue):
            loaded[name] = _plain_value(name, kept, checkpoint)
        else:
            loaded[name] = value
    return loaded


def _plain_value(name: str, kept: Mapping[str, object], checkpoint: Checkpoint) -> JsonValue:
    if name not in kept:
        raise CheckpointError(f"{checkpoint.path} has no value for {name}; it was written by another version")
    value = kept[name]
    if not isinstance(value, JsonValue):
        raise CheckpointError(
            f"{checkpoint.path} has no plain value for {name}; it was written by another version"
        )
    return value

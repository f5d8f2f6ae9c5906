"""One checkpoint: named tensors and a state, whole or not present at all.

Knows: how to assemble tensors from chunks of any ranks. Does not know: the tensors' meaning, how a checkpoint
is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cotswold.checkpoint.chunk_file import read_chunk, verify_chunk
from cotswold.checkpoint.manifest import ChunkRecord, Manifest, group_by_tensor
from cotswold.errors import CheckpointError, MismatchError
from cotswold.geometry import Box
from cotswold.host.ranks import ALONE, Ranks, raise_on_all


class Checkpoint:
    """A checkpoint in a folder; checksums are verified on opening, and again when a tensor is read.

    All ranks open it together, and each verifies its share of the files.

    Args:
        path: Folder of the checkpoint.
        ranks: The ranks that open it together (default: only this process).

    Attributes:
        path: Folder of the checkpoint.
        step: Number of the training step.
        identity: Text that identifies the run.
        state: Values that were saved together with the tensors.

    Raises:
        CheckpointError: On every rank, if one rank finds damage.
    """

    def __init__(self, path: Path, ranks: Ranks = ALONE) -> None:
        with raise_on_all(ranks, CheckpointError):
            manifest = Manifest.read(path)
            for record in manifest.chunks[ranks.rank :: ranks.size]:
                verify_chunk(path, record)
        if len(set(ranks.gather(manifest.checksum))) > 1:
            raise CheckpointError(
                f"{path} is not the same checkpoint for every rank; a run's directory must be on a file "
                "system that all its hosts share"
            )
        self.path = path
        self.step = manifest.step
        self.identity = manifest.identity
        self.state = manifest.state
        self._chunks = group_by_tensor(manifest.chunks)

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._chunks)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor ``name``.

        Raises:
            MismatchError: The checkpoint has no such tensor.
        """
        return tuple(self._records(name)[0].shape)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of the values of tensor ``name``.

        Raises:
            MismatchError: The checkpoint has no such tensor.
        """
        return self._records(name)[0].torch_dtype

    def records(self, name: str) -> Sequence[ChunkRecord]:
        """Return the records of the chunks of tensor ``name``.

        Their file names are in the checkpoint's folder.

        Args:
            name: Name of the tensor.

        Raises:
            MismatchError: The checkpoint has no such tensor.
        """
        return self._records(name)

    def read(self, name: str, box: Box | None = None) -> Tensor:
        """Read a tensor, or a part of it, assembled from its chunks.

        Args:
            name: Name of the tensor.
            box: Part of the tensor to read, as index ranges (default: all).

        Returns:
            A new CPU tensor with the shape of ``box``.

        Raises:
            MismatchError: The checkpoint has no such tensor.
            CheckpointError: A file is damaged, or the chunks do not cover the box.
        """
        box = Box.whole(self.shape(name)) if box is None else box
        tensor = torch.empty(box.shape, dtype=self.dtype(name))
        self.read_into(name, tensor, box)
        return tensor

    def read_into(self, name: str, target: Tensor, box: Box | None = None) -> None:
        """Read a part of a tensor into an existing tensor.

        Each file that holds a part of the box is read once, a few megabytes at a time, so resuming needs no
        second copy.

        Args:
            name: Name of the tensor.
            target: Tensor to fill, with the shape of ``box``, any strides, and on any device.
            box: Part of the tensor to read, as index ranges (default: all).

        Raises:
            MismatchError: The shape or type differs, or the checkpoint has no such tensor.
            CheckpointError: A file is damaged, or the chunks do not cover the box.
        """
        shape, dtype = self.shape(name), self.dtype(name)
        box = Box.whole(shape) if box is None else box
        if tuple(target.shape) != box.shape or target.dtype != dtype:
            raise MismatchError(
                f"{self.path}: tensor {name} is {dtype} {box.shape}, "
                f"not {target.dtype} {tuple(target.shape)}; it was written by another network"
            )
        parts = [
            (record, common) for record in self._records(name) if (common := box.intersect(record.box)).size
        ]
        if sum(common.size for _, common in parts) != box.size:
            raise CheckpointError(f"{self.path}: the chunks of tensor {name} do not cover {box}")
        for record, common in parts:
            to = common.shift(tuple(-start for start in box.start)).slices
            read_chunk(self.path, record, common, target.detach()[to])

    def tensors(self) -> dict[str, Tensor]:
        """Read all tensors, whole, by name."""
        return {name: self.read(name) for name in self.names}

    def _records(self, name: str) -> list[ChunkRecord]:
        if name not in self._chunks:
            raise MismatchError(
                f"{self.path} has no tensor {name}; it was written by another network, or with a "
                "state_dict that lacks it"
            )
        return self._chunks[name]

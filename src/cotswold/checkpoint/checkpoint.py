"""One checkpoint: named tensors and a state, whole or not there at all.

Knows: how tensors are put together from pieces, whoever wrote them. Does not know: what the tensors are, how
a checkpoint is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cotswold.checkpoint.manifest import Manifest, by_tensor
from cotswold.checkpoint.piece_record import PieceRecord
from cotswold.checkpoint.shard_file import read_piece, verify_piece
from cotswold.errors import CheckpointError, MismatchError
from cotswold.geometry import Box
from cotswold.host.ranks import ALONE, Ranks, raise_on_all


class Checkpoint:
    """A checkpoint. Its checksums are verified when it is opened, and again when a tensor is read.

    All ranks open it together, and each verifies its share of the files. Raises CheckpointError on every rank
    if one finds damage.
    """

    def __init__(self, path: Path, ranks: Ranks = ALONE) -> None:
        with raise_on_all(ranks, CheckpointError):
            manifest = Manifest.read(path)
            for record in manifest.pieces[ranks.rank :: ranks.size]:
                verify_piece(path, record)
        if len(set(ranks.gather(manifest.seal))) > 1:
            raise CheckpointError(
                f"{path} is not the same checkpoint for every rank; a run's directory must be on a file "
                "system that all its hosts share"
            )
        self.path = path
        self.step = manifest.step
        self.identity = manifest.identity
        self.state = manifest.state
        self._pieces = by_tensor(manifest.pieces)

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return tuple(self._records(name)[0].shape)

    def dtype(self, name: str) -> torch.dtype:
        """The type of a tensor's values."""
        return self._records(name)[0].torch_dtype

    def records(self, name: str) -> Sequence[PieceRecord]:
        """The pieces of a tensor and the files in the checkpoint's folder that hold them."""
        return self._records(name)

    def read(self, name: str, box: Box | None = None) -> Tensor:
        """A tensor, or the part of it in ``box``, put together from however many pieces were written."""
        box = Box.whole(self.shape(name)) if box is None else box
        tensor = torch.empty(box.shape, dtype=self.dtype(name))
        self.read_into(name, tensor, box)
        return tensor

    def read_into(self, name: str, target: Tensor, box: Box | None = None) -> None:
        """Fill a tensor in place, of any strides and on any device, with the part of the whole in ``box``.

        Every file that has some of it is read once, a few megabytes at a time, so that resuming needs no
        second copy. Raises MismatchError where shape or type differ, CheckpointError where the pieces do not
        cover the box.
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
            raise CheckpointError(f"{self.path}: the pieces of tensor {name} do not make up {box}")
        for record, common in parts:
            to = common.shift(tuple(-start for start in box.start)).slices
            read_piece(self.path, record, common, target.detach()[to])

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, whole."""
        return {name: self.read(name) for name in self.names}

    def _records(self, name: str) -> list[PieceRecord]:
        if name not in self._pieces:
            raise MismatchError(
                f"{self.path} has no tensor {name}; it was written by another network, or with a "
                "state_dict that lacks it"
            )
        return self._pieces[name]

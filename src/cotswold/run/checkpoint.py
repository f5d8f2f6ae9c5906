"""Checkpoints: named tensors and a state, whole or not there at all.

Knows: pieces, the manifest, the order of writing. Does not know: what the tensors are, nor how many processes
will read them. A checkpoint is written beside (`<step>.partial`), synced, and renamed, so that a kill at any
moment leaves the ones before as they were.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import torch
from torch import Tensor

from cotswold.errors import CheckpointError, RunError
from cotswold.geometry import Box
from cotswold.run.durable import PARTIAL, disk_errors, durable_file, sync_folder, write_all
from cotswold.run.piece import Piece, PieceRecord, read_piece, verify_piece, write_piece

_FORMAT = 1
_MANIFEST = "manifest.json"

State = dict[str, object]


class Checkpoint:
    """A checkpoint. Its checksums were verified when it was opened, and are again when a tensor is read."""

    def __init__(self, path: Path) -> None:
        manifest = _read_manifest(path)
        self.path = path
        self.step = manifest["step"]
        self.identity = manifest["identity"]
        self.state = manifest["state"]
        self._pieces: dict[str, list[PieceRecord]] = {}
        for entry in manifest["pieces"]:
            record = PieceRecord(**entry)
            verify_piece(path, record)
            self._pieces.setdefault(record.tensor, []).append(record)

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

    def read(self, name: str, box: Box | None = None) -> Tensor:
        """A tensor, or the part of it in ``box``, put together from however many pieces were written."""
        box = Box.whole(self.shape(name)) if box is None else box
        tensor = torch.empty(box.shape, dtype=self.dtype(name))
        self.read_into(name, tensor, box)
        return tensor

    def read_into(self, name: str, target: Tensor, box: Box | None = None) -> None:
        """Fill a tensor in place, so that resuming needs no second copy.

        Raises CheckpointError where shape or type differ, or where the pieces do not cover the box.
        """
        shape, dtype = self.shape(name), self.dtype(name)
        box = Box.whole(shape) if box is None else box
        if tuple(target.shape) != box.shape or target.dtype != dtype:
            raise CheckpointError(
                f"{self.path}: tensor {name} is {dtype} {box.shape}, "
                f"not {target.dtype} {tuple(target.shape)}; it was written by another network"
            )
        covered = 0
        for record in self._records(name):
            common = box.intersect(record.box)
            covered += common.size
            if record.box == box and target.is_contiguous() and target.device.type == "cpu":
                read_piece(self.path, record, target)
            elif common.size:
                piece = torch.empty(record.box.shape, dtype=dtype)
                read_piece(self.path, record, piece)
                to, of = (common.shift(tuple(-at for at in each.start)).slices for each in (box, record.box))
                with torch.no_grad():
                    target[to].copy_(piece[of])
        if covered != box.size:
            raise CheckpointError(f"{self.path}: the pieces of tensor {name} do not make up {box}")

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, whole."""
        return {name: self.read(name) for name in self.names}

    def _records(self, name: str) -> list[PieceRecord]:
        if name not in self._pieces:
            raise CheckpointError(f"{self.path} has no tensor {name}; it was written by another network")
        return self._pieces[name]


class Latest(NamedTuple):
    """The newest sound checkpoint, if there is any, and a sentence about each newer one that is damaged."""

    checkpoint: Checkpoint | None
    skipped: tuple[str, ...]


class Checkpoints:
    """A folder of checkpoints; the ``keep`` newest stay, and ``identity`` says whose they are."""

    def __init__(self, folder: str | Path, *, keep: int = 2, identity: str = "") -> None:
        if keep < 1:
            raise ValueError(f"at least one checkpoint must be kept, not {keep}")
        self.folder, self._keep, self._identity = Path(folder), keep, identity

    def save(self, step: int, tensors: Mapping[str, Tensor] | Iterable[Piece], state: State) -> Path:
        """Write a checkpoint, one piece after the other, and remove what it makes superfluous.

        ``state`` is what JSON holds (tuples come back as lists). Raises DiskFullError or CheckpointError, and
        then every earlier checkpoint is as it was. Checkpoints of later steps, which a resumed run did not
        take up, go; as do the leftovers of a save that was killed.
        """
        with disk_errors(self.folder, CheckpointError):
            self.folder.mkdir(parents=True, exist_ok=True)
            for leftover in self.folder.glob(f"*{PARTIAL}"):
                shutil.rmtree(leftover)
            path = self._free_path(step)
            beside = path.with_name(path.name + PARTIAL)
            try:
                self._write(beside, step, tensors, state)
                beside.rename(path)
            except BaseException:
                shutil.rmtree(beside, ignore_errors=True)
                raise
            sync_folder(self.folder)
            self._prune(path)
        return path

    def latest(self) -> Latest:
        """The newest sound checkpoint; raises CheckpointError if there are some and all are damaged."""
        skipped: list[str] = []
        for path in reversed(self.paths()):
            try:
                return Latest(self.load(path), tuple(skipped))
            except CheckpointError as error:
                skipped.append(str(error))
        if skipped:
            raise CheckpointError(f"every checkpoint in {self.folder} is damaged: {'; '.join(skipped)}")
        return Latest(None, ())

    def load(self, path: Path) -> Checkpoint:
        """The checkpoint in a folder; raises CheckpointError if damaged, RunError if another recipe's."""
        checkpoint = Checkpoint(path)
        if checkpoint.identity != self._identity:
            raise RunError(
                f"{path} is a checkpoint of another recipe; resume with the recipe of its run, "
                "or choose another directory"
            )
        return checkpoint

    def paths(self) -> list[Path]:
        """Folders of finished checkpoints, by step."""
        entries = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(
            (each for each in entries if _order(each) is not None), key=lambda each: _order(each) or ()
        )

    def _free_path(self, step: int) -> Path:
        """`<step>`, or `<step>-<n>` where that was saved before and stays until the new one is there."""
        taken = [order[1] for each in self.paths() if (order := _order(each)) and order[0] == step]
        return self.folder / (f"{step:08d}-{max(taken) + 1}" if taken else f"{step:08d}")

    def _write(
        self, folder: Path, step: int, tensors: Mapping[str, Tensor] | Iterable[Piece], state: State
    ) -> None:
        folder.mkdir()
        pieces = (Piece(*item) for item in tensors.items()) if isinstance(tensors, Mapping) else tensors
        records = [
            asdict(write_piece(folder, f"{number:05d}.safetensors", piece))
            for number, piece in enumerate(pieces)
        ]
        manifest: _Manifest = {
            "format": _FORMAT,
            "step": step,
            "identity": self._identity,
            "state": state,
            "pieces": records,
        }
        with durable_file(folder / _MANIFEST) as file:
            sealed = {"crc32": _seal(manifest), **manifest}
            write_all(file, json.dumps(sealed, indent=1).encode())
        sync_folder(folder)

    def _prune(self, newest: Path) -> None:
        paths = self.paths()
        position = paths.index(newest)
        later, earlier = paths[position + 1 :], paths[:position]
        same = [each for each in earlier if (_order(each) or ())[:1] == (_order(newest) or ())[:1]]
        rest = [each for each in earlier if each not in same]
        for path in [*later, *same, *rest[: max(len(rest) + 1 - self._keep, 0)]]:
            shutil.rmtree(path)


def _order(path: Path) -> tuple[int, int] | None:
    """(step, how often saved before) from a folder's name; None for anything else."""
    step, _, again = path.name.partition("-")
    if not (step.isdigit() and (again or "1").isdigit()):
        return None
    return int(step), int(again or 1)


def _seal(manifest: _Manifest) -> str:
    return f"{zlib.crc32(json.dumps(manifest, sort_keys=True).encode()):08x}"


class _Manifest(TypedDict):
    format: int
    step: int
    identity: str
    state: State
    pieces: list[dict[str, Any]]


def _read_manifest(folder: Path) -> _Manifest:
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        sealed = manifest.pop("crc32")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: it is not a manifest") from error
    if _seal(manifest) != sealed:
        raise CheckpointError(f"{path} is damaged: its checksum is not its own")
    if manifest.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is of format {manifest.get('format')}; this Cotswold reads {_FORMAT}")
    return cast(_Manifest, manifest)

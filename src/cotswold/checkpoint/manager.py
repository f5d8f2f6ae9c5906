"""A folder of checkpoints that any number of ranks write together.

Knows: the order of writing, what may be removed. Does not know: what the tensors are, nor how many processes
will read them. A checkpoint is written beside (`<step>.partial`), each rank its own pieces, synced, and
renamed, so that a kill of any rank at any moment leaves the ones before as they were.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from cotswold.checkpoint.checkpoint import Checkpoint
from cotswold.checkpoint.manifest import Manifest, State
from cotswold.checkpoint.piece_in_file import SealedPiece
from cotswold.checkpoint.piece_record import PieceRecord
from cotswold.checkpoint.shard_file import Piece
from cotswold.errors import CheckpointError, MismatchError, RunError
from cotswold.files import PARTIAL, disk_errors, real_folder, sync_folder
from cotswold.host.ranks import ALONE, Ranks, raise_on_all

_NAME = re.compile(r"([0-9]+)(?:-([0-9]+))?")


class Latest(NamedTuple):
    """The newest sound checkpoint, if there is any, and a sentence about each newer one that is damaged."""

    checkpoint: Checkpoint | None
    skipped: tuple[str, ...]


class Checkpoints:
    """A folder of checkpoints; the ``keep`` newest stay, and ``identity`` says whose they are.

    With several ``ranks`` the folder is on a file system that all of them share, and `save`, `latest` and
    `load` are called by all of them together: they return the same on each, or raise on each.
    """

    def __init__(
        self, folder: str | Path, *, keep: int = 2, identity: str = "", ranks: Ranks = ALONE
    ) -> None:
        if keep < 1:
            raise ValueError(f"at least one checkpoint must be kept, not {keep}")
        self.folder, self._keep, self._identity = Path(folder), keep, identity
        self._ranks = ranks

    def save(
        self, step: int, tensors: Mapping[str, Tensor] | Iterable[Piece | SealedPiece], state: State
    ) -> Path:
        """Write a checkpoint, each rank its own pieces one after the other, and remove what it makes
        superfluous.

        Each value of a tensor is in one piece of one rank; a rank may have none at all. Pieces are asked for
        one at a time and must not wait for other ranks. ``state`` is what JSON holds (tuples come back as
        lists); that of rank 0 counts. Raises DiskFullError or CheckpointError, on every rank if on one, and
        then every earlier checkpoint is as it was. Checkpoints of later steps, which a resumed run did not
        load, go; as do the leftovers of a save that was killed. What cannot be removed fails no save: rank
        0 warns of it, and the next save tries again.
        """
        path = self._begun(step)
        beside = _beside(path)
        try:
            with self._agreed():
                own = self._written(beside, tensors)
            records = [PieceRecord(**each) for rank in self._ranks.gather(own) for each in rank]
            with self._agreed():
                if self._ranks.rank == 0:
                    Manifest(step, self._identity, state, tuple(records)).write(beside)
                    sync_folder(beside)
                    beside.rename(path)
                    sync_folder(self.folder)
                    self._prune(path)
        except BaseException:
            if self._ranks.rank == 0:
                shutil.rmtree(beside, ignore_errors=True)
            raise
        return path

    def latest(self, use: Callable[[Checkpoint], None] | None = None) -> Latest:
        """The newest sound checkpoint, which ``use`` has taken where that is given.

        One that is damaged, or for which ``use`` raises CheckpointError on any rank, is passed over for the
        one before; ``use`` must not wait for other ranks, and be able to begin again. Raises CheckpointError
        if there are some and none can be used, MismatchError (of the newest) if those that are not damaged do
        not fit, RunError if one is another run's.
        """
        skipped = list[str]()
        misfit: MismatchError | None = None
        with self._agreed():
            own = [path.name for path in self.paths()]
        for name in reversed(self._ranks.gather(own)[0]):
            try:
                checkpoint = self.load(self.folder / name)
                if use is not None:
                    with raise_on_all(self._ranks, CheckpointError):
                        use(checkpoint)
            except CheckpointError as error:
                skipped.append(str(error))
                if isinstance(error, MismatchError):
                    misfit = misfit or error
            else:
                return Latest(checkpoint, tuple(skipped))
        if misfit is not None:
            raise misfit
        if skipped:
            raise CheckpointError(f"every checkpoint in {self.folder} is damaged: {'; '.join(skipped)}")
        return Latest(None, ())

    def load(self, path: Path) -> Checkpoint:
        """The checkpoint in a folder; raises CheckpointError if damaged, RunError if another run's."""
        checkpoint = Checkpoint(path, self._ranks)
        with raise_on_all(self._ranks, RunError):
            if checkpoint.identity != self._identity:
                raise RunError(
                    f"{path} is a checkpoint of another run or of another recipe; take it out of this run's "
                    "directory, or give the run the recipe again with which it began"
                )
        return checkpoint

    def paths(self) -> list[Path]:
        """Folders of finished checkpoints, by step; raises CheckpointError where theirs is a link."""
        if self.folder.is_symlink():
            raise CheckpointError(
                f"{self.folder} is a symbolic link, which is not followed; move there what it points to"
            )
        entries = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(
            (each for each in entries if _order(each) is not None), key=lambda each: _order(each) or ()
        )

    @contextmanager
    def _agreed(self) -> Iterator[None]:
        with raise_on_all(self._ranks, CheckpointError), disk_errors(self.folder, CheckpointError):
            yield

    def _begun(self, step: int) -> Path:
        """Where the checkpoint will be; rank 0 has made room for it, and the folder beside."""
        steps = self._ranks.gather(step)
        if len(set(steps)) > 1:
            raise CheckpointError(f"the ranks are about to save different steps: {steps}")
        name = ""
        with self._agreed():
            if self._ranks.rank == 0:
                real_folder(self.folder)
                for leftover in self.folder.glob(f"*{PARTIAL}"):
                    _discard(leftover)
                path = self._free_path(step)
                _beside(path).mkdir()
                name = path.name
        return self.folder / str(self._ranks.gather(name)[0])

    def _free_path(self, step: int) -> Path:
        """`<step>`, or `<step>-<n>` where that was saved before and stays until the new one is there.

        A leftover that cannot be removed keeps its name, too.
        """
        taken = [order[1] for each in self.paths() if (order := _order(each)) and order[0] == step]
        names = (
            f"{step:08d}" if time == 1 else f"{step:08d}-{time}" for time in count(max(taken, default=0) + 1)
        )
        return next(path for name in names if not _beside(path := self.folder / name).exists())

    def _written(
        self, folder: Path, tensors: Mapping[str, Tensor] | Iterable[Piece | SealedPiece]
    ) -> list[dict[str, object]]:
        """Write this rank's pieces; what the manifest will say of them."""
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder}, which rank 0 has made, is not there; a run's directory must be on a file system "
                "that all its hosts share"
            )
        pieces: Iterable[Piece | SealedPiece] = (
            (Piece(*item) for item in tensors.items()) if isinstance(tensors, Mapping) else tensors
        )
        rank, size = self._ranks.rank, self._ranks.size
        # the ranks take turns in the numbers, so that no two files have the same
        return [
            asdict(piece.write(folder, f"{rank + size * number:05d}.safetensors"))
            for number, piece in enumerate(pieces)
        ]

    def _prune(self, newest: Path) -> None:
        paths = self.paths()
        position = paths.index(newest)
        later, earlier = paths[position + 1 :], paths[:position]
        same = [each for each in earlier if (_order(each) or ())[:1] == (_order(newest) or ())[:1]]
        rest = [each for each in earlier if each not in same]
        for path in [*later, *same, *rest[: max(len(rest) + 1 - self._keep, 0)]]:
            _discard(path)


def _discard(folder: Path) -> None:
    """Remove a folder, under a name that says that it may go: half of a checkpoint is none."""
    try:
        gone = folder if folder.name.endswith(PARTIAL) else folder.rename(_beside(folder))
        shutil.rmtree(gone)
    except OSError as error:
        warnings.warn(
            f"{folder}, which is not needed any more, cannot be removed ({error.strerror}); the next "
            "checkpoint tries again, or remove it by hand",
            RuntimeWarning,
            stacklevel=2,
        )


def _beside(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def _order(path: Path) -> tuple[int, int] | None:
    """(step, how often saved before) from a folder's name; None for anything else."""
    found = _NAME.fullmatch(path.name)
    return (int(found[1]), int(found[2] or 1)) if found else None

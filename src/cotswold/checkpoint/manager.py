"""A folder of checkpoints that any number of ranks write together.

Knows: the order of writing, which checkpoints may be removed. Does not know: the tensors' meaning, the number
of processes that will read them. Each rank writes its chunks into a temporary folder (`<step>.partial`),
which is synced and renamed. So a kill of any rank at any moment leaves earlier checkpoints intact.
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
from cotswold.checkpoint.chunk_file import SealedChunk, TensorChunk
from cotswold.checkpoint.manifest import ChunkRecord, Manifest, State
from cotswold.errors import CheckpointError, MismatchError, RunError
from cotswold.files import PARTIAL, disk_errors, real_folder, sync_folder
from cotswold.host.ranks import ALONE, Ranks, raise_on_all

_NAME = re.compile(r"([0-9]+)(?:-([0-9]+))?")


class Latest(NamedTuple):
    """The newest undamaged checkpoint, and the reasons why newer ones were skipped.

    Attributes:
        checkpoint: The checkpoint; None if the folder has none.
        skipped: One sentence about each newer checkpoint that is damaged.
    """

    checkpoint: Checkpoint | None
    skipped: tuple[str, ...]


class CheckpointManager:
    """A folder of checkpoints.

    With several ranks the folder is on a file system that all of them share. All ranks call `save`, `latest`
    and `load` together; a call returns the same on each, or raises on each.

    Args:
        folder: Folder that contains one folder per checkpoint.
        keep: Number of the newest checkpoints to keep, at least 1.
        identity: Text that identifies the run; `load` refuses checkpoints with another text.
        ranks: The ranks that use the folder together (default: only this process).

    Raises:
        ValueError: ``keep`` is less than 1.
    """

    def __init__(
        self, folder: str | Path, *, keep: int = 2, identity: str = "", ranks: Ranks = ALONE
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.folder, self._keep, self._identity = Path(folder), keep, identity
        self._ranks = ranks

    def save(
        self, step: int, tensors: Mapping[str, Tensor] | Iterable[TensorChunk | SealedChunk], state: State
    ) -> Path:
        """Write a checkpoint, each rank its own chunks, and remove outdated checkpoints.

        Checkpoints of later steps, which a resumed run did not load, are removed, and so are the leftovers of
        a killed save. A failure to remove one fails no save: rank 0 warns, and the next save tries again.

        Args:
            step: Number of the training step, the same on every rank.
            tensors: This rank's chunks, or whole tensors by name; may be empty. Each value of a tensor is in
                exactly one chunk of one rank. Chunks are consumed one at a time, and must not wait for other
                ranks.
            state: Values that JSON can represent (tuples come back as lists); rank 0's are saved.

        Returns:
            Folder of the checkpoint.

        Raises:
            DiskFullError: On every rank, if the disk is full for one; earlier checkpoints stay intact.
            CheckpointError: On every rank, if one cannot write or the chunks do not fit; earlier checkpoints
                stay intact.
        """
        path = self._create_partial(step)
        partial = _partial_path(path)
        try:
            with self._raise_on_all():
                own = self._write_chunks(partial, tensors)
            records = [ChunkRecord(**each) for rank in self._ranks.gather(own) for each in rank]
            with self._raise_on_all():
                if self._ranks.rank == 0:
                    Manifest(step, self._identity, state, tuple(records)).write(partial)
                    sync_folder(partial)
                    partial.rename(path)
                    sync_folder(self.folder)
                    self._prune(path)
        except BaseException:
            if self._ranks.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        return path

    def latest(self, use: Callable[[Checkpoint], None] | None = None) -> Latest:
        """Open the newest undamaged checkpoint that ``use`` accepts.

        Args:
            use: Called with a checkpoint to load it. If it raises CheckpointError on any rank, the previous
                checkpoint is tried. It must not wait for other ranks, and must be repeatable.

        Returns:
            The checkpoint, and the reasons why newer ones were skipped.

        Raises:
            CheckpointError: There are checkpoints, and all are damaged.
            MismatchError: The undamaged checkpoints do not fit; the error is that of the newest.
            RunError: A checkpoint belongs to another run.
        """
        skipped = list[str]()
        misfit: MismatchError | None = None
        with self._raise_on_all():
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
        """Open the checkpoint in a folder.

        Args:
            path: Folder of the checkpoint.

        Raises:
            CheckpointError: The checkpoint is damaged.
            RunError: The checkpoint belongs to another run.
        """
        checkpoint = Checkpoint(path, self._ranks)
        with raise_on_all(self._ranks, RunError):
            if checkpoint.identity != self._identity:
                raise RunError(
                    f"{path} is a checkpoint of another run or of another recipe; remove it from this run's "
                    "directory, or use the recipe with which the run began"
                )
        return checkpoint

    def paths(self) -> list[Path]:
        """List the folders of finished checkpoints, by step.

        Raises:
            CheckpointError: The folder is a symbolic link.
        """
        if self.folder.is_symlink():
            raise CheckpointError(
                f"{self.folder} is a symbolic link, which is not followed; move its target there"
            )
        entries = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(
            (each for each in entries if _parse_name(each) is not None),
            key=lambda each: _parse_name(each) or (),
        )

    @contextmanager
    def _raise_on_all(self) -> Iterator[None]:
        with raise_on_all(self._ranks, CheckpointError), disk_errors(self.folder, CheckpointError):
            yield

    def _create_partial(self, step: int) -> Path:
        """Return the new checkpoint's folder; rank 0 has created its temporary folder."""
        steps = self._ranks.gather(step)
        if len(set(steps)) > 1:
            raise CheckpointError(f"the ranks must save the same step, got {steps}")
        name = ""
        with self._raise_on_all():
            if self._ranks.rank == 0:
                real_folder(self.folder)
                for leftover in self.folder.glob(f"*{PARTIAL}"):
                    _discard(leftover)
                path = self._free_path(step)
                _partial_path(path).mkdir()
                name = path.name
        return self.folder / str(self._ranks.gather(name)[0])

    def _free_path(self, step: int) -> Path:
        """Return `<step>`, or `<step>-<n>` if the step was saved before and stays until the new one exists.

        A leftover that cannot be removed keeps its name, too.
        """
        taken = [order[1] for each in self.paths() if (order := _parse_name(each)) and order[0] == step]
        names = (
            f"{step:08d}" if time == 1 else f"{step:08d}-{time}" for time in count(max(taken, default=0) + 1)
        )
        return next(path for name in names if not _partial_path(path := self.folder / name).exists())

    def _write_chunks(
        self, folder: Path, tensors: Mapping[str, Tensor] | Iterable[TensorChunk | SealedChunk]
    ) -> list[dict[str, object]]:
        """Write this rank's chunks and return their records for the manifest."""
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder}, which rank 0 has created, is missing on this host; a run's directory must be on "
                "a file system that all its hosts share"
            )
        chunks: Iterable[TensorChunk | SealedChunk] = (
            (TensorChunk(*item) for item in tensors.items()) if isinstance(tensors, Mapping) else tensors
        )
        rank, size = self._ranks.rank, self._ranks.size
        # Numbers are interleaved over ranks, so that no two files have the same name.
        return [
            asdict(chunk.write(folder, f"{rank + size * number:05d}.safetensors"))
            for number, chunk in enumerate(chunks)
        ]

    def _prune(self, newest: Path) -> None:
        paths = self.paths()
        position = paths.index(newest)
        later, earlier = paths[position + 1 :], paths[:position]
        same = [each for each in earlier if (_parse_name(each) or ())[:1] == (_parse_name(newest) or ())[:1]]
        rest = [each for each in earlier if each not in same]
        for path in [*later, *same, *rest[: max(len(rest) + 1 - self._keep, 0)]]:
            _discard(path)


def _discard(folder: Path) -> None:
    """Remove a folder, renamed first so that a half-removed checkpoint does not count as one."""
    try:
        gone = folder if folder.name.endswith(PARTIAL) else folder.rename(_partial_path(folder))
        shutil.rmtree(gone)
    except OSError as error:
        warnings.warn(
            f"{folder}, which is no longer needed, cannot be removed ({error.strerror}); the next "
            "checkpoint tries again, or remove it manually",
            RuntimeWarning,
            stacklevel=2,
        )


def _partial_path(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def _parse_name(path: Path) -> tuple[int, int] | None:
    """Parse (step, number of earlier saves of it) from a folder's name; None for other names."""
    found = _NAME.fullmatch(path.name)
    return (int(found[1]), int(found[2] or 1)) if found else None

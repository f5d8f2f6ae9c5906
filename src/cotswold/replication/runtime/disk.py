"""A server's disk: what copies are saved to, and read from when every memory that had them is gone.

Knows: a block store, a thread that writes to it and one that reads, what people should know of it. Does not
know: when anything is saved, what becomes of what is read (`replication.replica`).

Nobody waits for it: what is to be written is copied first, what came of it is told where `take` is called.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from cotswold.errors import MachineError, StoreError
from cotswold.files.durable import replace_file
from cotswold.processes.worker_thread import Working
from cotswold.replication.disk import (
    BlockStore,
    DamagedError,
    Flusher,
    Head,
    Renewed,
    WriteFailed,
    Written,
)
from cotswold.replication.disk.bucket_format import saved_of, snapshot_of
from cotswold.replication.disk_recovery import CLUSTER_FILE, RUNS_FOLDER
from cotswold.replication.replica.saved_bucket import ASIDE, Saved
from cotswold.wire.lifecycle import FINISH_SECONDS
from cotswold.wire.names import is_run

_CLOSE_SECONDS = FINISH_SECONDS / 2
_WRITES = 16
"""So many of the last ones tell how slow the disk is."""
_SCRUB_SECONDS = 1.0
_SCRUB_BYTES = 16 << 20
"""So many bytes are read again in a second, at most, to see whether they are what was written."""
_CLUSTER_BYTES = 200
_SAY_SECONDS = 10.0
"""How often it is said that the disk takes nothing."""


class Disk:
    """That of one server."""

    def __init__(
        self,
        folder: Path,
        flush_seconds: float,
        saved: Callable[[int], None],
        damaged: Callable[[str], None],
        trouble: Callable[[str], None],
    ) -> None:
        """What is given is in ``folder`` before ``flush_seconds`` are over (`saving`). By `take`,
        ``saved`` hears numbers of `write`, ``damaged`` buckets that are to be written again, ``trouble``
        sentences for people. Raises as `BlockStore`."""
        self._saved, self._damaged, self._trouble = saved, damaged, trouble
        self._working = Working()
        try:
            self._store = BlockStore(folder, renewed=self._tell_renewed)
        except BaseException:
            self._working.close()
            raise
        try:
            heads = self._heads()
        except MachineError as error:
            heads = error.heads if isinstance(error, DamagedError) else {}
            trouble(str(error))
        self.cluster = self._cluster()
        """Of which the server is that had it last; empty where none was told."""
        self.buckets = tuple(heads)
        """Those that were there at first."""
        self._first = max((each.index for each in heads.values()), default=0)
        """Numbers of `write` are added to it: no block has had such a one before."""
        self._flusher = Flusher(self._store, self._tell)
        self._took = deque[float](maxlen=_WRITES)
        """Seconds of each of the last writes."""
        self._last = ""
        """What the last write was like."""
        self._failing: tuple[float, float] | None = None
        """Since when the disk takes nothing, and when that was said last."""
        self._belongs_at = float("-inf")
        """When the name of its cluster is to be written again, if that could not be."""
        self._scrub_at = time.monotonic() + _SCRUB_SECONDS
        self._scrubbed: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._flusher.close(_CLOSE_SECONDS):
            self._trouble(f"it ends, and {self.unsaved_bytes / 1e6:.1f} MB are not on its disk: {self.pace}")
        self._working.close()
        self._store.close()

    @property
    def window_seconds(self) -> float:
        """How old the oldest change is that was given and is not there."""
        return self._flusher.window_seconds

    @property
    def unsaved_bytes(self) -> int:
        """Of what was given and is not there."""
        return self._flusher.bytes

    @property
    def pace(self) -> str:
        """Why what was given is not there, in words."""
        if self._failing is not None:
            return "the disk takes nothing"
        under_way = self._flusher.writing_seconds
        if under_way > 1.0:
            return f"the disk is slow, a write has been under way for {under_way:.1f} s"
        return f"the disk is slow, {self._last}" if self._last else "the disk has taken nothing yet"

    @property
    def slowest_seconds(self) -> float:
        """How long the slowest of the last writes took, or that which is under way has taken so far."""
        return max(self._flusher.writing_seconds, *self._took, 0.0)

    def together(self) -> AbstractContextManager[object]:
        """What is given within is written together."""
        return self._flusher.together()

    def say(self, sentence: str) -> None:
        """Tell people something of this disk."""
        self._trouble(sentence)

    def fileno(self) -> int:
        """Can be read where `take` has something."""
        return self._working.fileno()

    def take(self) -> None:
        """Tell what came of what was asked for."""
        self._working.take()

    def write(self, number: int, saved: Saved, since: float) -> bool:
        """Have it written, whose oldest change was made at ``since``; False where there is no room now."""
        return self._flusher.offer(snapshot_of(saved, self._first + number), since)

    def read(self, bucket: str, done: Callable[[Saved | None], None]) -> None:
        """Read a bucket; ``done`` hears what there is, if all of it is sound."""
        self._working.do(partial(self._read, bucket, done))

    def forget(self, bucket: str) -> None:
        """A bucket is wanted no more."""
        self._flusher.drop(bucket)

    def belong(self, cluster: str, now: float) -> None:
        """The server is of that cluster."""
        if cluster and cluster != self.cluster and now >= self._belongs_at:
            self._belongs_at = float("inf")
            self._working.do(partial(self._belong, cluster))

    def describe(self, run: str, description: str) -> None:
        """Keep the description of a run beside its buckets, for a state that is lost; none if it is empty."""
        if is_run(run):
            self._working.do(partial(self._describe, run, description))

    def _describe(self, run: str, description: str) -> None:
        path = self._store.folder / RUNS_FOLDER / run
        try:
            if description:
                path.parent.mkdir(exist_ok=True)
                replace_file(path, description.encode())
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            trouble = f"cannot write to its disk what is said of run {run} ({error})"
            self._working.tell(partial(self._trouble, trouble))

    def _belong(self, cluster: str) -> None:
        trouble = ""
        try:
            replace_file(self._store.folder / CLUSTER_FILE, cluster.encode())
        except OSError as error:
            trouble = f"cannot write to its disk of which cluster it is ({error}); it is tried again"
        self._working.tell(partial(self._belongs, cluster, trouble))

    def _belongs(self, cluster: str, trouble: str) -> None:
        if trouble:
            self._trouble(trouble)
            self._belongs_at = time.monotonic() + _SAY_SECONDS
        else:
            self.cluster, self._belongs_at = cluster, float("-inf")

    def _cluster(self) -> str:
        try:
            return (self._store.folder / CLUSTER_FILE).read_bytes()[:_CLUSTER_BYTES].decode()
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            self._trouble(f"cannot read of which cluster its disk is ({error}): it is of the next one")
            return ""

    def scrub(self, now: float) -> None:
        """Read something again, if it is time: flipped bits are found while other copies live."""
        if now >= self._scrub_at:
            self._scrub_at = float("inf")
            self._working.do(self._scrub)

    def _tell(self, said: Written | WriteFailed) -> None:
        self._working.tell(partial(self._written, said))

    def _written(self, said: Written | WriteFailed) -> None:
        now = time.monotonic()
        if isinstance(said, WriteFailed):
            since, told = self._failing or (now, float("-inf"))
            if now - told >= _SAY_SECONDS:
                told = now
                waits = f"what is not on the disk is {said.window_seconds:.1f} s old"
                self._trouble(f"{said.error}; it is tried again, and {waits}")
            self._failing = since, told
            return
        if self._failing is not None:
            self._trouble(
                f"its disk is written to again, after {now - self._failing[0]:.1f} s in which it was not"
            )
            self._failing = None
        if said.bytes:
            self._took.append(said.seconds)
            self._last = f"it took {said.seconds:.2f} s for the last {said.bytes / 1e6:.1f} MB"
        for _, index in said.indices:
            self._saved(index - self._first)

    def _read(self, bucket: str, done: Callable[[Saved | None], None]) -> None:
        found = None
        try:
            found = saved_of(bucket, self._store.read(bucket))
        except KeyError:
            pass
        except (DamagedError, MachineError, ValueError) as error:
            self._working.tell(partial(self._trouble, f"cannot go on from its disk with {bucket}: {error}"))
        self._working.tell(partial(done, found))

    def _scrub(self) -> None:
        read = 0
        try:
            if not self._scrubbed:
                self._scrubbed = list(self._heads())
            if self._scrubbed:
                blocks = self._store.read(self._scrubbed[-1]).blocks
                read = sum(each.nbytes for each in blocks.values())
                self._scrubbed.pop()
        except KeyError:
            self._scrubbed.pop()
        except DamagedError as error:
            for bucket in {each.bucket for each in error.damaged if each.bucket is not None}:
                self._working.tell(partial(self._heal, bucket, str(error)))
            self._scrubbed = self._scrubbed[:-1]
        except MachineError as error:
            self._working.tell(partial(self._trouble, str(error)))
        wait = max(_SCRUB_SECONDS, read / _SCRUB_BYTES)
        self._working.tell(partial(self._scrub_again, time.monotonic() + wait))

    def _heads(self) -> Mapping[str, Head]:
        """Those of all buckets, once a damaged index is mended, whether anything is written or not."""
        try:
            return self._store.heads()
        except DamagedError as error:
            if all(each.bucket is not None for each in error.damaged):
                raise
        with suppress(MachineError):  # without room for another index: those that are sound are there
            self._store.mend()
        return self._store.heads()

    def _tell_renewed(self, renewed: Renewed) -> None:
        self._working.tell(partial(self._renew, renewed))

    def _renew(self, renewed: Renewed) -> None:
        self._trouble(str(renewed))
        for bucket in renewed.buckets:
            self._damaged(bucket)

    def _scrub_again(self, when: float) -> None:
        self._scrub_at = when

    def _heal(self, bucket: str, why: str) -> None:
        self._trouble(f"{why}; {bucket} is written again from memory")
        self._damaged(bucket)


def open_disk(
    folder: Path,
    flush_seconds: float,
    saved: Callable[[int], None],
    damaged: Callable[[str], None],
    trouble: Callable[[str], None],
) -> Disk:
    """As `Disk`; one that is damaged as a whole is moved aside, and begun anew. One of another version is
    sound: FormatError is raised."""
    try:
        return Disk(folder, flush_seconds, saved, damaged, trouble)
    except StoreError as error:
        aside = folder.with_name(f"{folder.name}{ASIDE}{time.time_ns()}")
        folder.rename(aside)
        trouble(f"{error}; it is {aside} now, and an empty one is begun")
        return Disk(folder, flush_seconds, saved, damaged, trouble)

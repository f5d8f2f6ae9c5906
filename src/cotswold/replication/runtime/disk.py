"""The disk of a server: replicas are saved to it, and read from it when no memory has them.

Knows: a block store, a thread that writes and one that reads, events about the disk. Does not know: when
anything is saved, the use of what is read (`replication.replica`).

No caller waits for the disk: data are copied before they are written, and `run_callbacks` delivers the
results.
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
from cotswold.processes.worker_thread import WorkerThread
from cotswold.replication.disk import (
    BlockStore,
    DamagedError,
    Flusher,
    Head,
    RebuiltIndex,
    WriteCompleted,
    WriteFailed,
)
from cotswold.replication.disk.bucket_format import saved_of, snapshot_of
from cotswold.replication.metadata_recovery import CLUSTER_FILE, RUNS_FOLDER
from cotswold.replication.replica.saved_bucket import DAMAGED_SUFFIX, SavedBucket
from cotswold.wire.lifecycle import STOP_SECONDS
from cotswold.wire.names import is_run

_CLOSE_SECONDS = STOP_SECONDS / 2
_WRITES = 16
"""Number of recent writes that measure the speed of the disk."""
_SCRUB_SECONDS = 1.0
_SCRUB_BYTES = 16 << 20
"""Bytes per second, at most, that scrubbing reads again to verify them."""
_CLUSTER_BYTES = 200
_REPORT_SECONDS = 10.0
"""Minimum interval between two events about a failing disk."""


class Disk:
    """The disk of one server."""

    def __init__(
        self,
        folder: Path,
        flush_seconds: float,
        on_saved: Callable[[int], None],
        on_damaged: Callable[[str], None],
        report: Callable[[str], None],
    ) -> None:
        """Open the disk in ``folder``, which stores submitted data within ``flush_seconds``
        (`persistence`). `run_callbacks` calls ``on_saved`` with numbers of `write`, ``on_damaged`` with
        buckets to write again, and ``report`` with sentences for people. Raises as `BlockStore`."""
        self._on_saved, self._on_damaged, self._report = on_saved, on_damaged, report
        self._worker_thread = WorkerThread()
        try:
            self._store = BlockStore(folder, renewed=self._on_rebuilt)
        except BaseException:
            self._worker_thread.close()
            raise
        try:
            heads = self._heads()
        except MachineError as error:
            heads = error.heads if isinstance(error, DamagedError) else {}
            report(str(error))
        self.cluster = self._cluster()
        """Cluster of the last server that had the disk; empty if unknown."""
        self.buckets = tuple(heads)
        """Buckets on the disk at the start."""
        self._first = max((each.index for each in heads.values()), default=0)
        """Offset of numbers of `write`, greater than that of any block on the disk."""
        self._flusher = Flusher(self._store, self._on_result)
        self._write_seconds = deque[float](maxlen=_WRITES)
        """Duration of each recent write, in seconds."""
        self._last = ""
        """Description of the last write."""
        self._failure: tuple[float, float] | None = None
        """Time since when writes fail, and time of the last event about it."""
        self._cluster_retry_at = float("-inf")
        """Time at which to retry a failed write of the cluster's name."""
        self._scrub_at = time.monotonic() + _SCRUB_SECONDS
        self._scrubbed: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._flusher.close(_CLOSE_SECONDS):
            self._report(f"it stops with {self.unsaved_bytes / 1e6:.1f} MB of unsaved changes: {self.pace}")
        self._worker_thread.close()
        self._store.close()

    @property
    def window_seconds(self) -> float:
        """Age in seconds of the oldest change that was submitted and is not durable."""
        return self._flusher.window_seconds

    @property
    def unsaved_bytes(self) -> int:
        """Bytes that were submitted and are not durable."""
        return self._flusher.bytes

    @property
    def pace(self) -> str:
        """Why submitted data are not durable, in words."""
        if self._failure is not None:
            return "writes fail"
        under_way = self._flusher.writing_seconds
        if under_way > 1.0:
            return f"the disk is slow, a write has taken {under_way:.1f} s so far"
        return f"the disk is slow, {self._last}" if self._last else "nothing was written yet"

    @property
    def slowest_seconds(self) -> float:
        """Duration of the slowest recent write, or of the one in progress, in seconds."""
        return max(self._flusher.writing_seconds, *self._write_seconds, 0.0)

    def batch(self) -> AbstractContextManager[object]:
        """Write as one batch everything that is submitted inside this context."""
        return self._flusher.batch()

    def report(self, sentence: str) -> None:
        """Report a sentence about this disk."""
        self._report(sentence)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `run_callbacks` has results."""
        return self._worker_thread.fileno()

    def run_callbacks(self) -> None:
        """Deliver the results of requests."""
        self._worker_thread.run_callbacks()

    def write(self, number: int, saved: SavedBucket, since: float) -> bool:
        """Submit a write, whose oldest change was made at ``since``; False if there is no room now."""
        return self._flusher.offer(snapshot_of(saved, self._first + number), since)

    def read(self, bucket: str, done: Callable[[SavedBucket | None], None]) -> None:
        """Read a bucket; ``done`` receives its data if all of it is sound."""
        self._worker_thread.submit(partial(self._read, bucket, done))

    def forget(self, bucket: str) -> None:
        """Delete a bucket."""
        self._flusher.drop(bucket)

    def set_cluster(self, cluster: str, now: float) -> None:
        """Record the cluster to which the disk belongs."""
        if cluster and cluster != self.cluster and now >= self._cluster_retry_at:
            self._cluster_retry_at = float("inf")
            self._worker_thread.submit(partial(self._belong, cluster))

    def describe(self, run: str, description: str) -> None:
        """Keep the description of a run next to its buckets, in case the metadata are lost; an empty one
        deletes it."""
        if is_run(run):
            self._worker_thread.submit(partial(self._describe, run, description))

    def _describe(self, run: str, description: str) -> None:
        path = self._store.folder / RUNS_FOLDER / run
        try:
            if description:
                path.parent.mkdir(exist_ok=True)
                replace_file(path, description.encode())
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            trouble = f"cannot write the description of run {run} to its disk ({error})"
            self._worker_thread.call_in_main(partial(self._report, trouble))

    def _belong(self, cluster: str) -> None:
        trouble = ""
        try:
            replace_file(self._store.folder / CLUSTER_FILE, cluster.encode())
        except OSError as error:
            trouble = f"cannot write the name of its cluster to its disk ({error}); retrying"
        self._worker_thread.call_in_main(partial(self._belongs, cluster, trouble))

    def _belongs(self, cluster: str, trouble: str) -> None:
        if trouble:
            self._report(trouble)
            self._cluster_retry_at = time.monotonic() + _REPORT_SECONDS
        else:
            self.cluster, self._cluster_retry_at = cluster, float("-inf")

    def _cluster(self) -> str:
        try:
            return (self._store.folder / CLUSTER_FILE).read_bytes()[:_CLUSTER_BYTES].decode()
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            self._report(f"cannot read the cluster of its disk ({error}); it joins the next one")
            return ""

    def scrub(self, now: float) -> None:
        """Read something again if due: flipped bits are found while other replicas exist."""
        if now >= self._scrub_at:
            self._scrub_at = float("inf")
            self._worker_thread.submit(self._scrub)

    def _on_result(self, said: WriteCompleted | WriteFailed) -> None:
        self._worker_thread.call_in_main(partial(self._written, said))

    def _written(self, said: WriteCompleted | WriteFailed) -> None:
        now = time.monotonic()
        if isinstance(said, WriteFailed):
            since, told = self._failure or (now, float("-inf"))
            if now - told >= _REPORT_SECONDS:
                told = now
                waits = f"unsaved changes are {said.window_seconds:.1f} s old"
                self._report(f"{said.error}; retrying, and {waits}")
            self._failure = since, told
            return
        if self._failure is not None:
            self._report(f"its disk accepts writes again, after {now - self._failure[0]:.1f} s")
            self._failure = None
        if said.bytes:
            self._write_seconds.append(said.seconds)
            self._last = f"it took {said.seconds:.2f} s for the last {said.bytes / 1e6:.1f} MB"
        for _, index in said.indices:
            self._on_saved(index - self._first)

    def _read(self, bucket: str, done: Callable[[SavedBucket | None], None]) -> None:
        found = None
        try:
            found = saved_of(bucket, self._store.read(bucket))
        except KeyError:
            pass
        except (DamagedError, MachineError, ValueError) as error:
            self._worker_thread.call_in_main(
                partial(self._report, f"cannot read {bucket} from its disk: {error}")
            )
        self._worker_thread.call_in_main(partial(done, found))

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
                self._worker_thread.call_in_main(partial(self._on_damage, bucket, str(error)))
            self._scrubbed = self._scrubbed[:-1]
        except MachineError as error:
            self._worker_thread.call_in_main(partial(self._report, str(error)))
        wait = max(_SCRUB_SECONDS, read / _SCRUB_BYTES)
        self._worker_thread.call_in_main(partial(self._scrub_again, time.monotonic() + wait))

    def _heads(self) -> Mapping[str, Head]:
        """Return the heads of all buckets; repair a damaged index first."""
        try:
            return self._store.heads()
        except DamagedError as error:
            if all(each.bucket is not None for each in error.damaged):
                raise
        with suppress(MachineError):  # without space for another index, the sound heads are still available
            self._store.mend()
        return self._store.heads()

    def _on_rebuilt(self, renewed: RebuiltIndex) -> None:
        self._worker_thread.call_in_main(partial(self._renew, renewed))

    def _renew(self, renewed: RebuiltIndex) -> None:
        self._report(str(renewed))
        for bucket in renewed.buckets:
            self._on_damaged(bucket)

    def _scrub_again(self, when: float) -> None:
        self._scrub_at = when

    def _on_damage(self, bucket: str, why: str) -> None:
        self._report(f"{why}; {bucket} is written again from memory")
        self._on_damaged(bucket)


def open_disk(
    folder: Path,
    flush_seconds: float,
    on_saved: Callable[[int], None],
    on_damaged: Callable[[str], None],
    report: Callable[[str], None],
) -> Disk:
    """Open a `Disk`; one that is damaged as a whole is moved aside and replaced by an empty one. One of
    another format version is sound: FormatError is raised."""
    try:
        return Disk(folder, flush_seconds, on_saved, on_damaged, report)
    except StoreError as error:
        aside = folder.with_name(f"{folder.name}{DAMAGED_SUFFIX}{time.time_ns()}")
        folder.rename(aside)
        report(f"{error}; it was moved to {aside}, and an empty one is used")
        return Disk(folder, flush_seconds, on_saved, on_damaged, report)

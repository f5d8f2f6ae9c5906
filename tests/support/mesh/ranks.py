"""Processes that run functions of tests as the ranks of a job over gloo on loopback.

Knows: how ranks are started once and reused. Does not know: their work.

A function is called on every rank of a fresh process group of ``count`` ranks; it must be importable by name.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

GLOO_TIMEOUT_S = 60
JOB_TIMEOUT_S = 120
GRACE_S = 5
"""Seconds that ranks may continue after one has failed."""
CONNECT_ATTEMPTS = 3
"""Times that ranks are started if gloo cannot connect them; their work has not begun then."""


class UnconnectedError(Exception):
    """Gloo could not connect the ranks: on a busy machine it loses a connection now and then."""


def _work(orders: Connection) -> None:
    """Work as a rank until the pipe to it is closed."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            rank, count, store, job = orders.recv()
        except EOFError:
            return
        try:
            answer = (True, _run(rank, count, store, job))
        except BaseException:
            answer = (False, traceback.format_exc())
        try:
            orders.send_bytes(pickle.dumps(answer))
        except BrokenPipeError:
            return


def _run(rank: int, count: int, store: str, job: bytes) -> Any:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import debug

    torch.manual_seed(0)
    function, arguments = pickle.loads(job)
    try:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(store, count),  # type: ignore[attr-defined]  # torch exports it untyped
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=GLOO_TIMEOUT_S),
        )
    except RuntimeError as error:
        raise UnconnectedError(str(error)) from error
    try:
        return function(*arguments)
    finally:
        dist.destroy_process_group()
        # what it remembers holds meshes of groups that are gone
        debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # torch leaves it untyped


class _RankPool:
    """Ranks that wait for work; the pool grows to the largest number requested."""

    def __init__(self) -> None:
        self._ranks: list[tuple[Any, Connection]] = []
        atexit.register(self.dismiss)

    def call(self, count: int, job: bytes, timeout_s: float) -> list[tuple[bool, Any]]:
        """Return the reply of every rank; TimeoutError if one gives none."""
        if not all(process.is_alive() for process, _ in self._ranks):
            self.dismiss()  # somebody ended one of them between two jobs
        spawning = multiprocessing.get_context("spawn")
        while len(self._ranks) < count:
            ours, theirs = spawning.Pipe()
            process = spawning.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            for rank, (_, orders) in enumerate(self._ranks[:count]):
                orders.send((rank, count, store, job))
            return self._answers(count, monotonic() + timeout_s)

    def _answers(self, count: int, end: float) -> list[tuple[bool, Any]]:
        waiting = {orders: rank for rank, (_, orders) in enumerate(self._ranks[:count])}
        answers: dict[int, tuple[bool, Any]] = {}
        while waiting:
            ready = wait(list(waiting), max(end - monotonic(), 0))
            if not ready and all(done for done, _ in answers.values()):
                raise TimeoutError(f"ranks {sorted(waiting.values())} gave no answer in time")
            if not ready:
                return [answers.get(rank, (False, "it waited for the others")) for rank in range(count)]
            for orders in ready:
                assert isinstance(orders, Connection)
                rank = waiting.pop(orders)
                answers[rank] = self._answer(rank)
                if not answers[rank][0]:  # others may wait for a message from it
                    end = min(end, monotonic() + GRACE_S)
        return [answers[rank] for rank in range(count)]

    def _answer(self, rank: int) -> tuple[bool, Any]:
        process, orders = self._ranks[rank]
        try:
            done, value = pickle.loads(orders.recv_bytes())
        except EOFError:
            process.join(5)
            return False, f"the process ended with exit code {process.exitcode}"
        return done, value

    def dismiss(self) -> None:
        """End every rank; the next call starts new ones."""
        for process, orders in self._ranks:
            orders.close()
            process.kill()
            process.join()
        self._ranks = []


_POOL = _RankPool()


def on_ranks(
    count: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = JOB_TIMEOUT_S
) -> list[Any]:
    """Return the results of ``function(*arguments)`` on ``count`` ranks with an initialised
    torch.distributed.

    Raises AssertionError with the traceback of every failed rank, or TimeoutError if one hangs; neither
    leaves a process behind.
    """
    job = pickle.dumps((function, arguments))
    for attempt in range(1, CONNECT_ATTEMPTS + 1):
        try:
            answers = _POOL.call(count, job, timeout_s)
        except BaseException:
            _POOL.dismiss()
            raise
        failures = {rank: text for rank, (done, text) in enumerate(answers) if not done}
        if not failures:
            return [value for _, value in answers]
        _POOL.dismiss()
        if attempt == CONNECT_ATTEMPTS or not any(
            UnconnectedError.__name__ in text for text in failures.values()
        ):
            break
    raise AssertionError("\n".join(f"rank {rank} of {count}:\n{text}" for rank, text in failures.items()))

"""A rank of a pool: a process that waits for work, does it, answers, and waits again.

Knows: its pipe, torch.distributed's process group, prepared actions to be timed later. Does not know: the
actions' content, who starts ranks. Run as ``python -m cotswold.bench.ranks.rank DESCRIPTOR THREADS``.

A waiting rank is blocked in a read and uses no processor time.
"""

from __future__ import annotations

import pickle
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=300)
"""Longest wait for another rank."""
Action = Callable[[], object]


@dataclass
class PoolRank:
    """This process as a member of its pool, and its state between calls."""

    number: int = 0
    count: int = 1
    actions: dict[str, Action] = field(default_factory=dict)
    """Actions that can be timed, by name."""
    cache: dict[str, Any] = field(default_factory=dict)
    """State that functions keep between calls."""


RankFunction = Callable[..., Any]
"""A function of a module, called with the rank first."""


def open_store(rank: PoolRank, address: str) -> int:
    """Start the store through which ranks find each other; return its port."""
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)  # type: ignore[attr-defined]  # torch exports it untyped
    rank.cache["store"] = store
    return int(store.port)


def join(rank: PoolRank, number: int, count: int, address: str, port: int) -> None:
    """Become rank ``number`` of a group over Gloo."""
    rank.number, rank.count = number, count
    store = rank.cache.get("store")
    if store is None:
        store = dist.TCPStore(address, port, timeout=TIMEOUT)  # type: ignore[attr-defined]  # torch exports it untyped
    dist.init_process_group("gloo", store=store, rank=number, world_size=count, timeout=TIMEOUT)


def timed(rank: PoolRank, name: str, barrier: bool) -> float:
    """Seconds of one call of an action; with a ``barrier`` all ranks start at the same moment."""
    action = rank.actions[name]
    if barrier:
        dist.barrier()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _serve(orders: Connection) -> None:
    rank = PoolRank()
    while True:
        try:
            order = orders.recv_bytes()
        except (EOFError, ConnectionResetError):
            return
        try:
            work, arguments = pickle.loads(order)
            answer = (True, work(rank, *arguments))
        except Exception as error:
            answer = (False, (f"{type(error).__name__}: {error}", traceback.format_exc()))
        try:
            orders.send_bytes(pickle.dumps(answer))
        except BrokenPipeError:
            return


def main(descriptor: int, threads: int) -> None:
    """Do the work that arrives through the pipe until it is closed."""
    from cotswold.host import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(threads)
    _serve(Connection(descriptor))


if __name__ == "__main__":
    from cotswold.bench.ranks.rank import (
        main as imported,  # pickled functions need a module with its proper name
    )

    imported(int(sys.argv[1]), int(sys.argv[2]))

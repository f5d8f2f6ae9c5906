"""Processes that use a metadata store while a test watches.

``python -m tests.support.replication.metadata_clients PLAY WORDS...`` runs one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.warm import PYTHON

from cotswold.replication.metadata import Etcd, EtcdStore, MetadataStore, SqliteStore

Place = tuple[str, ...]
"""Place of a store in words: ("sqlite", PATH), or ("etcd", PREFIX, ENDPOINT...)."""
KEYS = 20


def opened(place: Place) -> MetadataStore:
    kind, name, *endpoints = place
    if kind == "sqlite":
        return SqliteStore(Path(name), busy_seconds=30)
    return EtcdStore(Etcd(tuple(endpoints), prefix=name, timeout_seconds=30))


@contextmanager
def played(play: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that runs a play, and end it with the block."""
    with subprocess.Popen(
        [*PYTHON, "-m", "tests.support.replication.metadata_clients", play, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def count(times: str, *place: str) -> None:
    """After a signal, add one to two keys a number of times, and print the number of lost races."""
    state, lost = opened(place), 0
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(times)):
        while True:
            found = state.read("count/")
            a, b = found.get("count/a"), found.get("count/b")
            more = str(int(a or 0) + 1)
            if state.transact([("count/a", a), ("count/b", b)], [("count/a", more), ("count/b", more)]):
                break
            lost += 1
    print(lost)


def fill(*place: str) -> None:
    """Write one number after another into all keys, and print the existing ones."""
    state = opened(place)
    number = int(state.read("key/").get("key/0", 0))
    while True:
        number += 1
        state.transact([], [(f"key/{at}", str(number)) for at in range(KEYS)])
        print(number, flush=True)


PLAYS: dict[str, Callable[..., None]] = {"count": count, "fill": fill}

if __name__ == "__main__":
    PLAYS[sys.argv[1]](*sys.argv[2:])

"""Start time of a process that has torch, and time until its death is reported.

Knows: the fork server and the clock. Does not know: the work of the processes.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from cotswold.bench.measure import Document, Spread, interleaved, rounded_all
from cotswold.host import Call, ForkServer

IMPORT = "a new Python that imports torch"
FIRST = "a fork server, and the first worker"
NEXT = "another worker"
WHOLE = "another worker, from its start to its end"
HEARD = "a worker killed: until its death is heard"


def processes(rounds: int) -> Document:
    """Return the seconds of each case, alternating round by round."""
    server = ForkServer(["torch"])
    try:
        server.start(Call("first", "torch:get_num_threads")).end()
        heard: list[float] = []
        cases = {
            IMPORT: lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True),
            FIRST: _first,
            NEXT: lambda: waiting.append(server.start(Call("waiter", "signal:pause"))),
            WHOLE: lambda: _whole(server),
            HEARD: lambda: heard.append(_heard(server)),
        }
        waiting: list[object] = []
        samples = interleaved(cases, rounds)
        samples[HEARD] = heard[-rounds:]  # without the start of the worker
    finally:
        server.close()
    return {
        "spread_seconds": {name: Spread.from_samples(taken).as_dict() for name, taken in samples.items()},
        "seconds": {name: rounded_all(taken) for name, taken in samples.items()},
    }


def _first() -> None:
    server = ForkServer(["torch"])
    server.start(Call("first", "torch:get_num_threads"))
    server.close()


def _whole(server: ForkServer) -> None:
    process = server.start(Call("short", "torch:get_num_threads"))
    select.select([process], [], [])
    process.end()


def _heard(server: ForkServer) -> float:
    process = server.start(Call("waiter", "signal:pause"))
    begun = time.perf_counter()
    os.kill(process.pid, signal.SIGKILL)
    select.select([process], [], [])
    seconds = time.perf_counter() - begun
    process.end()
    return seconds

"""Findings about limits of the system: shared memory, open files, ports, the clock.

Knows: /proc, sockets, the sizes that processes need. Does not know: hardware, programs.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cotswold.cli.cluster.admin import CONTROLLERS
from cotswold.cli.doctor.finding import HAS, NOTE, PROBLEM, Finding, install_program
from cotswold.host.open_files import processes_of, raise_descriptor_limit
from cotswold.phrases import counted
from cotswold.ui.format import bytes_in_words

SHARED = Path("/dev/shm")
_SHARED_LEAST_BYTES = 1 << 30
"""Size below which worker processes of PyTorch's DataLoader and Ray's object store are known to run out."""
_FILES_LEAST, _FILES_ENOUGH = 256, 4096
_TIMEX_BYTES, _MAX_ERROR_AT, _TIME_ERROR = 256, 24, 5
"""Bytes for Linux's ``struct timex``, the place of its ``maxerror``, and the state "not synchronised"."""


def system() -> Iterator[Finding]:
    """Yield shared memory, open files, ports and the clock."""
    from cotswold.processes.ray.settings import DEFAULT_PORT

    yield from shared_memory(SHARED)
    yield open_files(raise_descriptor_limit())
    yield port("controllers' port", int(CONTROLLERS.rpartition(":")[2]), "cotswold cluster start")
    yield port("Ray's port", DEFAULT_PORT, "cotswold worker --head")
    yield clock(clock_error())


def shared_memory(folder: Path) -> Iterator[Finding]:
    """Yield the finding about the file system for shared memory, if there is one."""
    with suppress(OSError):
        about = os.statvfs(folder)
        size, free = about.f_frsize * about.f_blocks, about.f_frsize * about.f_bavail
        said = f"{bytes_in_words(free)} free of {bytes_in_words(size)}"
        if free >= _SHARED_LEAST_BYTES:
            yield Finding(HAS, str(folder), said)
            return
        said += "; little for workers of a DataLoader and for Ray (Cotswold's own messages do not use it)"
        remedy = f"sudo mount -o remount,size=2G {folder} (docker run --shm-size 2g)"
        yield Finding(HAS, str(folder), said, NOTE, remedy)


def open_files(most: int) -> Finding:
    """Return the finding about open files, by the largest limit that this process can set for itself."""
    said = f"{most:,} per process, enough to connect to {counted(processes_of(most), 'process')}"
    if most >= _FILES_ENOUGH:
        return Finding(HAS, "open files", said)
    remedy = f"ulimit -Hn {_FILES_ENOUGH} as root (docker run --ulimit nofile={_FILES_ENOUGH})"
    return Finding(HAS, "open files", said, NOTE if most >= _FILES_LEAST else PROBLEM, remedy)


def port(name: str, number: int, command: str) -> Finding:
    """Return the finding about a TCP port that a command listens on by default."""
    try:
        socket.create_server(("127.0.0.1", number)).close()
    except OSError as error:
        said = f"{number} cannot be opened on the loopback ({error.strerror}): another process may have it"
        option = "--port PORT" if "worker" in command else "--controllers HOST:PORT"
        return Finding(HAS, name, said, NOTE, f"{command} {option}, if that process is another program")
    return Finding(HAS, name, f"{number} is free, for {command}")


def clock_error() -> float | None:
    """Return the largest error of the system's clock in seconds; infinite if nothing synchronises it.

    None if the system does not say.
    """
    adjust = getattr(ctypes.CDLL(None), "adjtimex", None) if sys.platform == "linux" else None
    if adjust is None:
        return None
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # with modes 0 the call only reads
    state = adjust(timex)
    if state < 0:
        return None
    error = int.from_bytes(timex.raw[_MAX_ERROR_AT : _MAX_ERROR_AT + 8], sys.byteorder, signed=True)
    return float("inf") if state == _TIME_ERROR else error / 1e6


def clock(error: float | None) -> Finding:
    """Return the finding about the clock, by which people compare logs of several machines."""
    if error is None:
        return Finding(HAS, "clock", "the system does not say whether it is synchronised")
    if error != float("inf"):
        return Finding(HAS, "clock", f"synchronised, to at most {error:.3f} s")
    said = "not synchronised: times in logs of several machines cannot be compared; leases do not use it"
    return Finding(HAS, "clock", said, NOTE, install_program("chrony"))

"""TCP ports that stay free until a test, or a process that it starts, listens there.

Knows: the system's ephemeral ports, ports of other tests. Does not know: the listeners.

A port found by binding to port 0 may be reassigned at any connection on the machine. So ports are chosen
outside of the ephemeral range.
"""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

_CHOSEN = range(20_000, 49_152)
"""Ports above those of services and of Ray's workers (10002 to 19999), below macOS's ephemeral ports."""
_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")


@contextmanager
def free_ports(count: int) -> Iterator[Sequence[int]]:
    """Yield ports without listeners, reserved inside a `with` block.

    A datagram socket with the same number, which does not disturb TCP, keeps other tests away, also those of
    other processes. If every port is ephemeral, a stranger may take any of them.
    """
    with ExitStack() as held:
        found: list[int] = []
        for port in random.SystemRandom().sample(_candidates(), len(_candidates())):
            if len(found) == count:
                break
            datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                datagrams.bind(("", port))
                socket.create_server(("", port)).close()
            except OSError:
                datagrams.close()
            else:
                held.enter_context(datagrams)
                found.append(port)
        assert len(found) == count, "there are thousands of ports"
        yield found


def _candidates() -> Sequence[int]:
    if not _HANDED_OUT.exists():
        return _CHOSEN
    first, last = map(int, re.findall(r"\d+", _HANDED_OUT.read_text()))
    return [port for port in _CHOSEN if not first <= port <= last] or _CHOSEN

"""TCP ports that stay free until a test, or a process that it starts, listens there.

Knows: which ports the system hands out by itself, ports of other tests. Does not know: who will listen.

A port that was found by binding to port 0 is taken as soon as anybody on the machine connects anywhere: the
system hands it out again. So ports are chosen outside of those that it hands out.
"""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

_CHOSEN = range(20_000, 49_152)
"""Above those of services and of Ray's workers (10002 to 19999), below those that macOS hands out."""
_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")


@contextmanager
def free_ports(count: int) -> Iterator[Sequence[int]]:
    """Ports where nobody listens, and which no other test is given inside of a `with` block.

    A datagram socket at the same number, which is no obstacle to TCP, keeps other tests away, those of other
    processes too. Where the system hands out every port, any of them may be taken by a stranger.
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

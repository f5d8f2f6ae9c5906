"""Numbers of hosts that are called by name.

Knows: which addresses a name leads to, which of them answers or is this machine's. Does not know: endpoints.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from cotswold.errors import UserError

_ANSWER_SECONDS = 1.0


def address_of(host: str, port: int) -> str:
    """The address of a host; of several, the first at which somebody listens at this port, else the first.

    Raises UserError for a name that leads nowhere.
    """
    return _first(host, lambda address: _answers(address, port))


def own_address_of(host: str) -> str:
    """The address of this machine that a name means; of several, the first at which it can listen.

    Raises UserError for a name that leads nowhere.
    """
    return _first(host, _is_own)


def _first(host: str, fits: Callable[[str], bool]) -> str:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(f"the host {host!r:.80} is not known here; write its address") from error
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    return next((each for each in addresses if fits(each)), addresses[0]) if addresses[1:] else addresses[0]


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, 0), family=family).close()
    except OSError:
        return False
    return True

"""Resolution of host names to addresses.

Knows: the addresses of a name, which of them answers or is this machine's. Does not know: endpoints.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from cotswold.errors import UserError

_ANSWER_SECONDS = 1.0


def address_of(host: str, port: int) -> str:
    """Resolve a host name; of several addresses, prefer the first that accepts connections at this port.

    Raises UserError if the name cannot be resolved.
    """
    return _first(host, lambda address: _answers(address, port))


def local_address_of(host: str) -> str:
    """Resolve a name to an address of this machine; of several, prefer the first at which it can listen.

    Raises UserError if the name cannot be resolved.
    """
    return _first(host, _is_own)


def _first(host: str, fits: Callable[[str], bool]) -> str:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(f"the host name {host!r:.80} cannot be resolved; give an IP address") from error
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

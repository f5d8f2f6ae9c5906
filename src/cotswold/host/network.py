"""The addresses and network interfaces by which this host reaches others, and they it.

Knows: routes as the system tells them, addresses of interfaces, listening sockets. Does not know: Gloo,
ranks.

Gloo asks for the address of the host's own name, which fails in a network namespace and is a loopback address
on many a Debian machine; so we tell it the interface. Whoever serves listens on one address, not on all.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address."""
_UNKNOWN = OSError, UnicodeError
"""What Python raises for a name that leads nowhere, and for one that cannot be a name ("a..b")."""
_ELSEWHERE = "192.0.2.1"
"""An address of nobody (RFC 5737): its route is the default route."""


def interface_to(host: str, *, several_hosts: bool) -> str | None:
    """The name of the interface that reaches ``host``; None where the system does not say (IPv6, macOS).

    With ``several_hosts`` never the loopback, which a host's own name may lead to: the one of the default
    route instead.
    """
    by_address = {address: name for _, name in socket.if_nameindex() if (address := _address_of(name))}
    for target in (host, _ELSEWHERE):
        address = _own_address(target)
        if address in by_address and not (several_hosts and address.startswith("127.")):
            return by_address[address]
    return None


def address_of_keeper(host: str, *, several_hosts: bool, interface: str | None) -> str:
    """Where to find the one that serves at ``host``: there, but for a name that leads to the loopback.

    With ``several_hosts`` such a name is this host's own, and the others know it by the address of
    ``interface``, or of the default route; that is returned, if there is one.
    """
    if not (several_hosts and _is_loopback(host)):
        return host
    return _address_to_others(interface) or host


def listener_at(host: str, port: int, *, interface: str | None) -> socket.socket:
    """A socket that listens at one address: that of ``host``, never all of this machine's.

    Where ``host`` is no address of this machine (its network translates addresses) it is that of
    ``interface`` or of the default route. Raises OSError: EADDRINUSE where the port is taken, EADDRNOTAVAIL
    where there is no such address or nobody knows the name.
    """
    unavailable = OSError(errno.EADDRNOTAVAIL, "the name of its host is not known")
    own = sorted(_addresses(host), key=_loops)  # where a name leads elsewhere, too, others use that
    for address in filter(None, [*own, _address_to_others(interface)] if own else []):
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return socket.create_server((address, port), family=family, backlog=1024)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            unavailable = error
    raise unavailable


def address_for_peers(environ: Mapping[str, str]) -> str | None:
    """Where peers on other hosts reach this one, as torch's settings say (GLOO_SOCKET_IFNAME, MASTER_ADDR),
    or the default route; None where nothing says it. The loopback where a literal one is the master's: then
    all peers are on this host."""
    name = environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if name:
        return _address_of(name)
    master = environ.get("MASTER_ADDR")
    if master is not None and _means_this_host(master):
        return LOOPBACK
    found = [_own_address(target) for target in (master, _ELSEWHERE) if target]
    # a host's own name may lead to the loopback, where no other host finds it
    return next((one for one in sorted(found, key=_loops_if_any) if one), None)


def address_towards(host: str) -> str | None:
    """The address of this machine from which it speaks to ``host``; None where it has no way there."""
    return _own_address(host) or None


def _means_this_host(host: str) -> bool:
    """Whether a text is the loopback wherever it is read; not a host's own name, which may lead there."""
    try:
        return host == "localhost" or _loops(host)
    except ValueError:  # a name
        return False


def _is_loopback(host: str) -> bool:
    found = _addresses(host)
    return bool(found) and all(map(_loops, found))


def _loops_if_any(address: str) -> bool:
    return bool(address) and _loops(address)


def _loops(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _addresses(host: str) -> list[str]:
    """The addresses that a name leads to; none where nobody knows it."""
    try:
        return list(
            dict.fromkeys(
                str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            )
        )
    except _UNKNOWN:
        return []


def _address_to_others(interface: str | None) -> str:
    """This host's address towards others, by the named interface or the default route; "" without one."""
    return (_address_of(interface) or "") if interface else _own_address(_ELSEWHERE)


def _own_address(target: str) -> str:
    """The address from which this host would speak to ``target``; nothing is sent."""
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
    except _UNKNOWN:
        return ""
    for family, kind, protocol, _, place in sorted(found, key=_is_ipv6):
        try:
            with socket.socket(family, kind, protocol) as udp:
                udp.connect(place)
                address = str(udp.getsockname()[0])
        except OSError:  # there is no way to this one
            continue
        # all of 127.0.0.0/8 is the loopback, which has one of them
        return LOOPBACK if address.startswith("127.") else address
    return ""


def _is_ipv6(found: tuple[object, ...]) -> bool:
    return found[0] == socket.AF_INET6


def _address_of(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            answer = fcntl.ioctl(udp.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])

"""Addresses and network interfaces between this host and others.

Knows: the system's routes, addresses of interfaces, listening sockets. Does not know: Gloo, ranks.

Gloo resolves the host's own name, which fails in a network namespace and is a loopback address on many Debian
machines. So Cotswold names the interface for Gloo. Servers listen on one address, not on all.
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
_RESOLUTION_ERRORS = OSError, UnicodeError
"""Python's exceptions for an unknown name, and for a text that cannot be a name ("a..b")."""
_EXTERNAL_ADDRESS = "192.0.2.1"
"""An address reserved for documentation (RFC 5737): its route is the default route."""


def interface_to(host: str, *, several_hosts: bool) -> str | None:
    """Name of the interface that reaches ``host``; None if the system does not say (IPv6, macOS).

    With ``several_hosts`` never the loopback, to which a host's own name may resolve; then the interface of
    the default route.
    """
    by_address = {address: name for _, name in socket.if_nameindex() if (address := _address_of(name))}
    for target in (host, _EXTERNAL_ADDRESS):
        address = _source_address(target)
        if address in by_address and not (several_hosts and address.startswith("127.")):
            return by_address[address]
    return None


def server_address(host: str, *, several_hosts: bool, interface: str | None) -> str:
    """Address of the server at ``host``: the name itself, unless it resolves to the loopback.

    With ``several_hosts`` such a name is this host's own. Other hosts then use the address of ``interface``,
    or of the default route, if there is one.
    """
    if not (several_hosts and _resolves_to_loopback(host)):
        return host
    return _address_to_others(interface) or host


def listener_at(host: str, port: int, *, interface: str | None) -> socket.socket:
    """Return a socket that listens at the address of ``host`` only, never on all interfaces.

    If ``host`` is no address of this machine (its network translates addresses), the socket listens at the
    address of ``interface`` or of the default route. Raises OSError: EADDRINUSE if the port is taken,
    EADDRNOTAVAIL if the address or name does not exist.
    """
    unavailable = OSError(errno.EADDRNOTAVAIL, "its host name cannot be resolved")
    own = sorted(
        _addresses(host), key=_is_loopback_address
    )  # If a name also resolves to other addresses, peers use those.
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
    """Address at which peers on other hosts reach this one; None if no setting or route determines it.

    It follows torch's settings (GLOO_SOCKET_IFNAME, MASTER_ADDR), then the default route. If MASTER_ADDR is a
    literal loopback address, all peers are on this host, and the result is the loopback.
    """
    name = environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if name:
        return _address_of(name)
    master = environ.get("MASTER_ADDR")
    if master is not None and _means_this_host(master):
        return LOOPBACK
    found = [_source_address(target) for target in (master, _EXTERNAL_ADDRESS) if target]
    # A host's own name may resolve to the loopback, where other hosts cannot reach it.
    return next((one for one in sorted(found, key=_is_loopback_if_any) if one), None)


def address_towards(host: str) -> str | None:
    """This machine's source address for connections to ``host``; None without a route."""
    return _source_address(host) or None


def _means_this_host(host: str) -> bool:
    """True if a text means the loopback on any host; false for a host's own name, which may resolve to it."""
    try:
        return host == "localhost" or _is_loopback_address(host)
    except ValueError:  # a name
        return False


def _resolves_to_loopback(host: str) -> bool:
    found = _addresses(host)
    return bool(found) and all(map(_is_loopback_address, found))


def _is_loopback_if_any(address: str) -> bool:
    return bool(address) and _is_loopback_address(address)


def _is_loopback_address(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _addresses(host: str) -> list[str]:
    """Addresses to which a name resolves; none if it is unknown."""
    try:
        return list(
            dict.fromkeys(
                str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            )
        )
    except _RESOLUTION_ERRORS:
        return []


def _address_to_others(interface: str | None) -> str:
    """This host's address for others, by the named interface or the default route; "" without one."""
    return (_address_of(interface) or "") if interface else _source_address(_EXTERNAL_ADDRESS)


def _source_address(target: str) -> str:
    """Source address of this host for packets to ``target``; sends nothing."""
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
    except _RESOLUTION_ERRORS:
        return ""
    for family, kind, protocol, _, place in sorted(found, key=_is_ipv6):
        try:
            with socket.socket(family, kind, protocol) as udp:
                udp.connect(place)
                address = str(udp.getsockname()[0])
        except OSError:  # there is no route to this one
            continue
        # All of 127.0.0.0/8 is the loopback, and the interface has only one of its addresses.
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

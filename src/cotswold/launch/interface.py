"""The network interface by which this host reaches another.

Knows: routes as the system tells them, addresses of interfaces. Does not know: Gloo, ranks.

Gloo asks for the address of the host's own name, which fails in a network namespace and is a loopback address
on many a Debian machine; so we tell it the interface.
"""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address."""
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


def _own_address(target: str) -> str:
    """The address from which this host would speak to ``target``; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            udp.connect((target, 9))
        except OSError:
            return ""
        address = str(udp.getsockname()[0])
    # all of 127.0.0.0/8 is the loopback, which has one of them
    return "127.0.0.1" if address.startswith("127.") else address


def _address_of(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            answer = fcntl.ioctl(udp.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])

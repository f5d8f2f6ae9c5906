"""Addresses of endpoints: the text by which processes find each other.

Knows: the host and namespaces of a process, the form of an address. Does not know: sockets.

An `Address` names a Unix socket for processes of the same host, and a TCP port for all others. Two processes
are on one host if they share the kernel, the network and the process numbers. Containers and namespaces with
their own count as separate hosts.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from cotswold.errors import ClusterError

Mode = Literal["hmac", "curve"]
"""Authentication of a connection over TCP: by challenge only (*hmac*), or with encryption too (*curve*)."""
_MODES: tuple[Mode, ...] = ("hmac", "curve")
_NONE = "-"
_UNKNOWN = "?"
_LONGEST = 1024
_FINGERPRINT = re.compile(r"[0-9a-f]{8}")
_PORT = re.compile(r"tcp://(\[[^\[\]]+\]|[^\[\]:/]+):[0-9]{1,5}")


@dataclass(frozen=True)
class Address:
    """Host, process, sockets and token of one endpoint."""

    host: str
    """Identifies the host: see `this_host`."""
    process: int
    challenge: str
    """Random text that callers sign, so that a signature is valid for this endpoint only."""
    unix: str | None
    """``ipc://`` and the path of a Unix socket."""
    tcp: str | None
    """``tcp://host:port``; None if only processes of the same host can connect."""
    mode: Mode
    fingerprint: str = ""
    """`Token.fingerprint` of the endpoint's current token; empty if unknown."""

    def __str__(self) -> str:
        return " ".join(
            (
                self.host,
                str(self.process),
                self.challenge,
                self.unix or _NONE,
                self.tcp or _NONE,
                self.mode,
                self.fingerprint,
            )
        ).rstrip()

    @classmethod
    def parsed(cls, text: str) -> Address:
        """Parse an address; raise ClusterError for any other text."""
        words = text.split(" ")
        if len(text) > _LONGEST or len(words) not in (6, 7):
            raise _no_address(text)
        host, process, challenge, unix, tcp, mode, *more = words
        known = [one for one in _MODES if one == mode]
        if not (known and process.isdecimal() and host and challenge):
            raise _no_address(text)
        if not all(map(_FINGERPRINT.fullmatch, more)):
            raise _no_address(text)
        if not (unix == _NONE or unix.startswith("ipc://")) or not (tcp == _NONE or _PORT.fullmatch(tcp)):
            raise _no_address(text)
        if unix == tcp == _NONE:
            raise _no_address(text)
        return cls(
            host,
            int(process),
            challenge,
            None if unix == _NONE else unix,
            None if tcp == _NONE else tcp,
            known[0],
            *more,
        )

    @classmethod
    def is_valid(cls, text: str) -> bool:
        """True if a text is an address."""
        try:
            cls.parsed(text)
        except ClusterError:
            return False
        return True

    @classmethod
    def is_reachable(cls, text: str) -> bool:
        """True if a text is the address of an endpoint that this process can call."""
        try:
            return bool(cls.parsed(text).route)
        except ClusterError:
            return False

    @classmethod
    def of_port(cls, host: str, port: int) -> Address:
        """An endpoint of which only the port is known; callers authenticate by *curve*."""
        shown = f"[{host}]" if ":" in host else host
        return cls(_UNKNOWN, 0, _NONE, None, f"tcp://{shown}:{port}", "curve")

    @property
    def tcp_host(self) -> str:
        """The host at which it listens; raise ClusterError if it has no TCP port."""
        if self.tcp is None:
            raise ClusterError(f"the endpoint at {self.unix} has no TCP port; start it with a host address")
        return self.tcp.removeprefix("tcp://").rpartition(":")[0].strip("[]")

    @property
    def is_port_only(self) -> bool:
        """True if `of_port` made it."""
        return self.host == _UNKNOWN

    def is_same(self, other: Address) -> bool:
        """True for the same endpoint, even if its port or token has changed."""
        return (self.host, self.process, self.challenge) == (other.host, other.process, other.challenge)

    @property
    def is_local(self) -> bool:
        """True if the endpoint is on this host."""
        return self.host == this_host()

    @property
    def route(self) -> tuple[str, Mode]:
        """The socket to connect to from this process, and its authentication; raise ClusterError if there
        is none."""
        if self.is_local and self.unix is not None:
            return self.unix, "hmac"
        if self.tcp is None:
            raise ClusterError(
                f"the endpoint at {self.unix} can only be reached on its own host; give it a host address"
            )
        return self.tcp, self.mode


def is_ipv6(text: str) -> bool:
    """True for an IPv6 address without brackets.

    >>> is_ipv6("::1"), is_ipv6("[::1]"), is_ipv6("10.0.0.1"), is_ipv6("::1:port")
    (True, False, False, False)
    """
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def is_port_taken(host: str, port: int) -> bool:
    """True if a process listens at this port of this machine."""
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            # a port that was just closed counts as free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False


@cache
def this_host() -> str:
    """Identifier of this host, the same in all of its processes, without spaces."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("net", "pid")]
    except OSError:  # not Linux: the name of the machine
        return f"{os.uname().nodename or 'host'}/{os.getuid()}".replace(" ", "-")
    return "/".join((boot, *map(str, spaces), str(os.geteuid())))


def _no_address(text: str) -> ClusterError:
    return ClusterError(f"{text[:80]!r} is not an endpoint's address; use the value of `Endpoint.address`")

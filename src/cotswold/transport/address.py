"""Where an endpoint is reached: the text that processes tell each other.

Knows: which host and namespaces a process is in, how an address is written. Does not know: sockets.

A `Address` names a Unix socket for processes of the same host, and TCP for all others. Two processes are on
one host where they share the kernel, the network and the numbers of processes: containers and namespaces that
do not are hosts of their own.
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
"""How a connection over TCP is authenticated: by a challenge alone, or with encryption as well."""
_MODES: tuple[Mode, ...] = ("hmac", "curve")
_NONE = "-"
_UNKNOWN = "?"
_LONGEST = 1024
_FINGERPRINT = re.compile(r"[0-9a-f]{8}")
_PORT = re.compile(r"tcp://(\[[^\[\]]+\]|[^\[\]:/]+):[0-9]{1,5}")


@dataclass(frozen=True)
class Address:
    """How one endpoint is reached."""

    host: str
    """What only processes of one host have in common: see `this_host`."""
    process: int
    challenge: str
    """A text by chance that callers sign, so that what they say serves for this endpoint alone."""
    unix: str | None
    """``ipc://`` and the path of a Unix socket."""
    tcp: str | None
    """``tcp://host:port``; None for one that is reached on its own host alone."""
    mode: Mode
    fingerprint: str = ""
    """Of the token by which it is reached (`Token.fingerprint`); empty where that is not known."""

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
        """The address that a text is; raises ClusterError for any other text."""
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
    def is_one(cls, text: str) -> bool:
        """Whether a text is an address."""
        try:
            cls.parsed(text)
        except ClusterError:
            return False
        return True

    @classmethod
    def is_reached(cls, text: str) -> bool:
        """Whether a text is the address of an endpoint that can be called from this process."""
        try:
            return bool(cls.parsed(text).way)
        except ClusterError:
            return False

    @classmethod
    def at_port(cls, host: str, port: int) -> Address:
        """An endpoint of which no more is known than its port, where callers are asked by *curve*."""
        shown = f"[{host}]" if ":" in host else host
        return cls(_UNKNOWN, 0, _NONE, None, f"tcp://{shown}:{port}", "curve")

    @property
    def tcp_host(self) -> str:
        """The host at which it listens; raises ClusterError for one that listens on its own host alone."""
        if self.tcp is None:
            raise ClusterError(f"the endpoint at {self.unix} has no port; give it a host's address")
        return self.tcp.removeprefix("tcp://").rpartition(":")[0].strip("[]")

    @property
    def is_port_alone(self) -> bool:
        """Whether `at_port` made it."""
        return self.host == _UNKNOWN

    def is_same(self, other: Address) -> bool:
        """Whether it is the same endpoint, reached otherwise meanwhile or not."""
        return (self.host, self.process, self.challenge) == (other.host, other.process, other.challenge)

    @property
    def is_here(self) -> bool:
        """Whether the endpoint is on this host."""
        return self.host == this_host()

    @property
    def way(self) -> tuple[str, Mode]:
        """What to connect to from this process, and how that is authenticated; raises ClusterError."""
        if self.is_here and self.unix is not None:
            return self.unix, "hmac"
        if self.tcp is None:
            raise ClusterError(
                f"the endpoint at {self.unix} can be reached on its own host alone; give it a host's address"
            )
        return self.tcp, self.mode


def is_ipv6(text: str) -> bool:
    """Whether a text is an IPv6 address, without brackets.

    >>> is_ipv6("::1"), is_ipv6("[::1]"), is_ipv6("10.0.0.1"), is_ipv6("::1:port")
    (True, False, False, False)
    """
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def is_taken(host: str, port: int) -> bool:
    """Whether somebody listens at this port of this machine."""
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what has just been closed is free
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False


@cache
def this_host() -> str:
    """What processes of one host have in common, in a word."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("net", "pid")]
    except OSError:  # not Linux: the name of the machine
        return f"{os.uname().nodename or 'host'}/{os.getuid()}".replace(" ", "-")
    return "/".join((boot, *map(str, spaces), str(os.geteuid())))


def _no_address(text: str) -> ClusterError:
    return ClusterError(f"{text[:80]!r} is no address of an endpoint; take the text that `address` gives")

"""Several hosts on one machine: network namespaces joined by a switch, over links of a given rate.

Knows: the programs `ip` and `tc`, names, addresses, counters of interfaces. Does not know: what runs on a
host.

Every host is a namespace with one or several interfaces; a further namespace has a bridge for each of these,
a switch, to which all are wired by veth pairs. The machine's own interfaces, routes and addresses are never
touched. A link is as fast both ways: a token bucket stands before either end. Needs root, Linux, and Debian's
package iproute2.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cotswold.errors import MachineError, UserError

Rate = str
"""Bits a second as `tc` has them: a number and ``mbit`` or ``gbit`` (10⁶, 10⁹), such as ``"100mbit"``."""

INTERFACE = "eth0"
"""The name of a host's first interface."""
HOSTS_MOST = 200
INTERFACES_MOST = 16
HEADER_BYTES = 14 + 20 + 32
"""Of a packet: Ethernet's, IP's, and TCP's with its time stamps."""
_PREFIX = "cotswold"
_RATE = re.compile(r"(\d+(?:\.\d+)?)(mbit|gbit)")
_NAME = re.compile(rf"{_PREFIX}-(\d+)-\d+-\w+")
_BRIDGE = "switch"
_LISTED = Path("/run/netns")
_TIMEOUT_SECONDS = 30
_SETTLING_SECONDS = 0.05
_SETTLING_MOST = 100
_BURST_BYTES_PER_GBIT = 128 << 10
_BURST_BYTES_LEAST, _BURST_BYTES_MOST = 16 << 10, 256 << 10
"""What may pass at once: a millisecond's worth, and much less than a message, or messages would pass
unshaped. From 1 gbit on two of the 64 KiB that the kernel hands over in one go; below, it cuts them."""
_QUEUE_BYTES = 64 << 20
"""More than any connection has under way, so that nothing is dropped and sent again."""
_SERIAL = itertools.count()
_NOBODY = "02:00:00:00:ff:ff"
"""A card that no host has."""
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Traffic:
    """What an interface has sent and received, Ethernet's headers included."""

    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    def since(self, before: Traffic) -> Traffic:
        """What has passed since an earlier count."""
        return Traffic(
            *(now - then for now, then in zip(vars(self).values(), vars(before).values(), strict=True))
        )


class Hosts:
    """``count`` hosts whose links have a rate, None for as fast as the machine is; use in a `with` statement.

    Each host has ``interfaces``, eth0, eth1 and so on; those of a number are a network of their own.
    Raises UserError for counts or a rate that are none, MachineError where namespaces cannot be made.
    """

    def __init__(self, count: int, rate: Rate | None = None, *, interfaces: int = 1) -> None:
        if not 1 <= count <= HOSTS_MOST:
            raise UserError(f"{count} hosts cannot be made here; ask for 1 to {HOSTS_MOST}")
        if not 1 <= interfaces <= INTERFACES_MOST:
            raise UserError(f"a host cannot have {interfaces} interfaces; ask for 1 to {INTERFACES_MOST}")
        self.count, self.rate, self.interfaces = count, rate, interfaces
        self._bucket = None if rate is None else _bucket(rate)
        stem = f"{_PREFIX}-{os.getpid()}-{next(_SERIAL)}"
        self._names = [f"{stem}-{host}" for host in range(count)]
        self._switch = f"{stem}-{_BRIDGE}"

    def __enter__(self) -> Hosts:
        _require()
        remove_leftovers()
        try:
            for name in (self._switch, *self._names):
                _ip("netns", "add", name)
            self._wire()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def address(self, host: int, interface: int = 0) -> str:
        """The address of a host's interface."""
        return f"10.97.{interface}.{host + 1}"

    def words(self, host: int) -> Sequence[str]:
        """What to write before a command so that it runs on a host."""
        return ("ip", "netns", "exec", self._names[host])

    def traffic(self) -> list[Traffic]:
        """What each host has sent and received so far, over all its interfaces."""
        return [_sum(self.traffic_of(host)) for host in range(self.count)]

    def traffic_of(self, host: int) -> list[Traffic]:
        """What each interface of a host has sent and received so far."""
        links = json.loads(_ip("-j", "-s", "-n", self._names[host], "link", "show", "type", "veth"))
        counts = {link["ifname"]: (link["stats64"]["tx"], link["stats64"]["rx"]) for link in links}
        return [
            Traffic(sent["bytes"], sent["packets"], received["bytes"], received["packets"])
            for sent, received in (counts[f"eth{interface}"] for interface in range(self.interfaces))
        ]

    def entered(self, host: int) -> AbstractContextManager[None]:
        """This thread, and those that it starts, are on a host inside a `with` block."""
        return entered(_LISTED / self._names[host])

    def namespace(self, host: int) -> Path:
        """What `entered` enters; for other processes."""
        return _LISTED / self._names[host]

    def cut(self, one: int, other: int) -> None:
        """Let what two hosts send to each other vanish, without a word to either."""
        self._wire_neighbours(one, other, _NOBODY)

    def mend(self, one: int, other: int) -> None:
        """The opposite of `cut`."""
        self._wire_neighbours(one, other, None)

    def slow(self, host: int, rate: Rate) -> None:
        """Give the links of a host another rate, both ways; the hosts were made with one."""
        for network in range(self.interfaces):
            ends = (self._names[host], f"eth{network}"), (self._switch, f"port{network}x{host}")
            for where, device in ends:
                _run(*f"tc -n {where} qdisc replace dev {device} root {_bucket(rate)}".split())

    def _wire_neighbours(self, one: int, other: int, card: str | None) -> None:
        for here, there in ((one, other), (other, one)):
            _batch(
                self._names[here],
                [
                    f"neigh replace {self.address(there, network)} lladdr {card or _card(there, network)} "
                    f"dev eth{network}"
                    for network in range(self.interfaces)
                ],
            )

    def settled_traffic(self) -> Traffic:
        """The counts of all hosts together, once the last acknowledgements have passed."""
        before = _sum(self.traffic())
        for _ in range(_SETTLING_MOST):
            time.sleep(_SETTLING_SECONDS)
            now = _sum(self.traffic())
            if now == before:
                break
            before = now
        return before

    def _wire(self) -> None:
        """Neighbours are told, IPv6 has no address, and bridges ask for no groups: nothing but messages is on
        the wire."""
        for network in range(self.interfaces):
            bridge = f"{_BRIDGE}{network}"
            made = f"link add {bridge} type bridge mcast_snooping 0", f"link set {bridge} addrgenmode none"
            _batch(self._switch, [*made, f"link set {bridge} up"])
            for host in range(self.count):
                self._wire_host(host, network, bridge)

    def _wire_host(self, host: int, network: int, bridge: str) -> None:
        name, interface, port = self._names[host], f"eth{network}", f"port{network}x{host}"
        card, peer = _card(host, network), f"peer name {port} netns {self._switch}"
        _ip(*f"-n {name} link add {interface} address {card} type veth {peer}".split())
        _batch(
            self._switch,
            [f"link set {port} addrgenmode none", f"link set {port} master {bridge}", f"link set {port} up"],
        )
        neighbours = [
            f"neigh add {self.address(one, network)} lladdr {_card(one, network)} dev {interface}"
            for one in range(self.count)
            if one != host
        ]
        _batch(
            name,
            [
                "link set lo up",
                f"link set {interface} addrgenmode none",
                f"address add {self.address(host, network)}/24 dev {interface}",
                f"link set {interface} up",
                *neighbours,
            ],
        )
        if self._bucket is not None:
            for where, device in ((name, interface), (self._switch, port)):
                _run(*f"tc -n {where} qdisc add dev {device} root {self._bucket}".split())

    def _remove(self) -> None:
        """A namespace takes its interfaces along; the pairs' other ends go with them."""
        for name in (*self._names, self._switch):
            if (_LISTED / name).exists():
                _ip("netns", "delete", name)


@contextmanager
def entered(namespace: Path) -> Iterator[None]:
    """This thread, and those that it starts, are in a network namespace inside a `with` block."""
    with Path("/proc/thread-self/ns/net").open("rb") as before:
        with namespace.open("rb") as there:
            _enter(there.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is Python's since 3.12
    if libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise MachineError(f"a network namespace cannot be entered: {os.strerror(number)}; run as root")


def _sum(each: Sequence[Traffic]) -> Traffic:
    return Traffic(*(sum(counts) for counts in zip(*(vars(one).values() for one in each), strict=True)))


def _card(host: int, network: int) -> str:
    """A locally administered address of the link layer."""
    return f"02:00:00:00:{network:02x}:{host + 1:02x}"


def _bucket(rate: Rate) -> str:
    """A token bucket of a rate, as `tc` has it."""
    found = _RATE.fullmatch(rate)
    gbit = float(found[1]) * (1 if found[2] == "gbit" else 1e-3) if found else 0.0
    if not gbit:
        raise UserError(f"{rate!r} is no rate of a link; write a number and mbit or gbit, such as '100mbit'")
    burst = min(max(round(_BURST_BYTES_PER_GBIT * gbit), _BURST_BYTES_LEAST), _BURST_BYTES_MOST)
    return f"tbf rate {rate} burst {burst} limit {_QUEUE_BYTES}"


def why_not() -> str | None:
    """Why hosts cannot be made on this machine, in a sentence; None where they can."""
    try:
        with Hosts(2, "10gbit"):
            return None
    except MachineError as error:
        return str(error)


def remove_leftovers() -> None:
    """Remove the hosts of processes that were killed before they could."""
    if not _LISTED.is_dir():
        return
    for entry in _LISTED.iterdir():
        owner = _NAME.fullmatch(entry.name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            # another process may remove it at the same moment
            subprocess.run(
                ["ip", "netns", "delete", entry.name],
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )


def _require() -> None:
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        raise MachineError(
            "hosts in network namespaces need root and the programs ip and tc (Debian's iproute2); "
            + (f"{' and '.join(missing)} cannot be found" if missing else "this user is not root")
        )


def _ip(*words: str) -> str:
    return _run("ip", *words)


def _batch(name: str, lines: Sequence[str]) -> None:
    """Several commands of `ip` in one namespace."""
    _run("ip", "-n", name, "-batch", "-", given="\n".join(lines) + "\n")


def _run(*words: str, given: str = "") -> str:
    done = subprocess.run(
        words, input=given, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        raise MachineError(
            f"hosts in network namespaces cannot be made here: '{' '.join(words)}' said "
            f"'{' '.join(done.stderr.split())}'; run as root on a Linux that has veth, bridge and tbf"
        )
    return done.stdout

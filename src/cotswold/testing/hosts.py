"""Several hosts on one machine: network namespaces joined by a switch, over links of a given rate.

Knows: names, addresses, links, counters of interfaces. Does not know: what the programs on a host do.

Every host is a namespace with one or several interfaces; a further namespace has a bridge for each of these,
a switch, to which all are wired by veth pairs. The machine's own interfaces, routes and addresses are never
touched. A link is as fast both ways: a token bucket stands before either end. What is cut goes to a card that
no host has, and that the switch keeps to itself. Needs root, Linux, and Debian's package iproute2.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from cotswold.errors import MachineError, UserError
from cotswold.testing.namespaces import (
    LISTED,
    PREFIX,
    batch,
    end_processes,
    entered,
    ip,
    processes_in,
    remove_leftovers,
    require,
    run,
)

Rate = str
"""Bits a second as `tc` has them: a number and ``mbit`` or ``gbit`` (10⁶, 10⁹), such as ``"100mbit"``."""

INTERFACE = "eth0"
"""The name of a host's first interface."""
HOSTS_MOST = 200
INTERFACES_MOST = 16
HEADER_BYTES = 14 + 20 + 32
"""Of a packet: Ethernet's, IP's, and TCP's with its time stamps."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)(mbit|gbit)")
_BRIDGE = "switch"
_SETTLING_SECONDS = 0.05
_SETTLING_MOST = 100
_BURST_BYTES_PER_GBIT = 128 << 10
_BURST_BYTES_LEAST, _BURST_BYTES_MOST = 16 << 10, 256 << 10
"""What may pass at once: a millisecond's worth, and much less than a message, or messages would pass
unshaped. From 1 gbit on two of the 64 KiB that the kernel hands over in one go; below, it cuts them."""
_QUEUE_BYTES = 64 << 20
"""More than any connection has under way, so that nothing is dropped and sent again."""
_SERIAL = itertools.count()
_OUTSIDE = ("192.0.2.1", "8.8.8.8")
"""Addresses whose routes are asked for: by Cotswold, and by Ray."""
_NOBODY = "02:00:00:00:ff:ff"
"""A card that no host has."""


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
        stem = f"{PREFIX}-{os.getpid()}-{next(_SERIAL)}"
        self._names = [f"{stem}-{host}" for host in range(count)]
        self._switch = f"{stem}-{_BRIDGE}"

    def __enter__(self) -> Hosts:
        require()
        remove_leftovers()
        try:
            for name in (self._switch, *self._names):
                ip("netns", "add", name)
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
        links = json.loads(ip("-j", "-s", "-n", self._names[host], "link", "show", "type", "veth"))
        counts = {link["ifname"]: (link["stats64"]["tx"], link["stats64"]["rx"]) for link in links}
        return [
            Traffic(sent["bytes"], sent["packets"], received["bytes"], received["packets"])
            for sent, received in (counts[f"eth{interface}"] for interface in range(self.interfaces))
        ]

    def entered(self, host: int) -> AbstractContextManager[None]:
        """This thread, and those that it starts, are on a host inside a `with` block."""
        return entered(LISTED / self._names[host])

    def namespace(self, host: int) -> Path:
        """What `entered` enters; for other processes."""
        return LISTED / self._names[host]

    def lead_outside(self) -> None:
        """Give every host routes to the world, which lead nowhere: from these programs, Ray too, learn by
        which of its addresses others know a host."""
        for name in self._names:
            gateway = f"10.97.0.{HOSTS_MOST + 1}"
            routes = [f"route add {address} via {gateway} dev {INTERFACE}" for address in _OUTSIDE]
            batch(name, [f"neigh add {gateway} lladdr {_NOBODY} dev {INTERFACE}", *routes])

    def start(
        self, host: int, words: Sequence[str], environ: Mapping[str, str], output: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program on a host, in a session of its own; what it prints is appended to a file."""
        with output.open("ab") as printed, self.entered(host):
            return subprocess.Popen(
                words,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self, host: int) -> list[int]:
        """All that live on a host, whoever started them."""
        return processes_in(self.namespace(host))

    def end(self, host: int) -> None:
        """Kill all that lives on a host, as if its power failed."""
        end_processes(self.namespace(host))

    def cut(self, one: int, other: int, networks: Iterable[int] | None = None) -> None:
        """Let what two hosts send to each other vanish without a word; on all networks, or on some."""
        self.cut_way(one, other, networks)
        self.cut_way(other, one, networks)

    def cut_way(self, sender: int, receiver: int, networks: Iterable[int] | None = None) -> None:
        """Let what one host sends to another vanish; what it is sent comes."""
        self._wire_neighbour(sender, receiver, networks, _NOBODY)

    def mend(self, one: int, other: int, networks: Iterable[int] | None = None) -> None:
        """The opposite of `cut`, and of `cut_way` either way."""
        self._wire_neighbour(one, other, networks, None)
        self._wire_neighbour(other, one, networks, None)

    def slow(self, host: int, rate: Rate | None) -> None:
        """Give the links of a host another rate, both ways; None for as fast as the machine is."""
        for network in range(self.interfaces):
            ends = (self._names[host], f"eth{network}"), (self._switch, f"port{network}x{host}")
            for where, device in ends:
                wanted = "noqueue" if rate is None else _bucket(rate)
                run(*f"tc -n {where} qdisc replace dev {device} root {wanted}".split())

    def control_congestion(self, by: str) -> None:
        """From now on TCP of all hosts controls congestion by an algorithm of the kernel's, such as
        ``"cubic"``, whatever this machine's does; raises MachineError for one that it does not have."""
        for host, name in enumerate(self._names):
            batch(
                name,
                [
                    f"route replace 10.97.{network}.0/24 dev eth{network} proto kernel scope link "
                    f"src {self.address(host, network)} congctl {by}"
                    for network in range(self.interfaces)
                ],
            )

    def _wire_neighbour(
        self, here: int, there: int, networks: Iterable[int] | None, card: str | None
    ) -> None:
        batch(
            self._names[here],
            [
                f"neigh replace {self.address(there, network)} lladdr {card or _card(there, network)} "
                f"dev eth{network}"
                for network in (range(self.interfaces) if networks is None else networks)
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
            batch(self._switch, [*made, f"link set {bridge} up"])
            run(*f"bridge -n {self._switch} fdb add {_NOBODY} dev {bridge} self permanent".split())
            for host in range(self.count):
                self._wire_host(host, network, bridge)

    def _wire_host(self, host: int, network: int, bridge: str) -> None:
        name, interface, port = self._names[host], f"eth{network}", f"port{network}x{host}"
        card, peer = _card(host, network), f"peer name {port} netns {self._switch}"
        ip(*f"-n {name} link add {interface} address {card} type veth {peer}".split())
        batch(
            self._switch,
            [f"link set {port} addrgenmode none", f"link set {port} master {bridge}", f"link set {port} up"],
        )
        neighbours = [
            f"neigh add {self.address(one, network)} lladdr {_card(one, network)} dev {interface}"
            for one in range(self.count)
            if one != host
        ]
        batch(
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
                run(*f"tc -n {where} qdisc add dev {device} root {self._bucket}".split())

    def _remove(self) -> None:
        """A namespace takes its interfaces along; the pairs' other ends go with them. A process would keep
        it, without a name."""
        for name in (*self._names, self._switch):
            if (LISTED / name).exists():
                end_processes(LISTED / name)
                ip("netns", "delete", name)


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

"""Simulated hosts on one machine: network namespaces joined by a switch, over links of a given rate.

Knows: names, addresses, links, counters of interfaces. Does not know: programs on a host.

Every host is a namespace with one or several interfaces. Another namespace, the switch, has a bridge for each
of these interfaces; veth pairs wire all hosts to it. The machine's own interfaces, routes and addresses stay
untouched. A link has the same rate in both directions: a token bucket shapes each end. Traffic on a cut link
goes to a MAC address that no host has, and that the switch drops. Needs root, Linux, and Debian's package
iproute2.
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
"""Bits per second in `tc`'s notation, such as ``"100mbit"``; units are ``mbit`` (10⁶) and ``gbit`` (10⁹)."""

INTERFACE = "eth0"
"""Name of a host's first interface."""
HOSTS_MOST = 200
INTERFACES_MOST = 16
HEADER_BYTES = 14 + 20 + 32
"""Bytes of a packet's headers: Ethernet's, IP's, and TCP's with timestamps."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)(mbit|gbit)")
_BRIDGE = "switch"
_SETTLING_SECONDS = 0.05
_SETTLING_MOST = 100
_BURST_BYTES_PER_GBIT = 128 << 10
_BURST_BYTES_LEAST, _BURST_BYTES_MOST = 16 << 10, 256 << 10
"""Burst of the token bucket in bytes.

A millisecond's worth, and much less than a message, which would pass unshaped otherwise. From 1 gbit on it
holds two of the 64 KiB that the kernel sends at once; below, the kernel splits them.
"""
_QUEUE_BYTES = 64 << 20
"""Bytes of the queue: more than any connection has in flight, so that nothing is dropped and sent again."""
_SERIAL = itertools.count()
_OUTSIDE = ("192.0.2.1", "8.8.8.8")
"""Addresses whose routes programs look up: Cotswold the first, Ray the second."""
_UNUSED_MAC = "02:00:00:00:ff:ff"
"""A MAC address that no host has."""


@dataclass(frozen=True)
class Traffic:
    """Counts of an interface, including Ethernet headers.

    Attributes:
        sent_bytes: Bytes sent.
        sent_packets: Packets sent.
        received_bytes: Bytes received.
        received_packets: Packets received.
    """

    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    def since(self, before: Traffic) -> Traffic:
        """Return the traffic since an earlier count.

        Args:
            before: The earlier count.
        """
        return Traffic(
            *(now - then for now, then in zip(vars(self).values(), vars(before).values(), strict=True))
        )


class Hosts:
    """Simulated hosts for a `with` block.

    Each host has interfaces eth0, eth1 and so on; interfaces of equal number form a separate network.

    Args:
        count: Number of hosts, 1 to 200.
        rate: Rate of every link (default: as fast as the machine).
        interfaces: Number of interfaces of each host, 1 to 16.

    Raises:
        UserError: An argument is out of range.
        MachineError: Namespaces cannot be created; see `why_not`.
    """

    def __init__(self, count: int, rate: Rate | None = None, *, interfaces: int = 1) -> None:
        if not 1 <= count <= HOSTS_MOST:
            raise UserError(f"{count} hosts were requested; count must be 1 to {HOSTS_MOST}")
        if not 1 <= interfaces <= INTERFACES_MOST:
            raise UserError(
                f"{interfaces} interfaces were requested; interfaces must be 1 to {INTERFACES_MOST}"
            )
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
        """Return the IPv4 address of a host's interface.

        Args:
            host: Number of the host, from 0.
            interface: Number of the interface, from 0.
        """
        return f"10.97.{interface}.{host + 1}"

    def words(self, host: int) -> Sequence[str]:
        """Return the words to put before a command so that it runs on a host.

        Args:
            host: Number of the host, from 0.
        """
        return ("ip", "netns", "exec", self._names[host])

    def traffic(self) -> list[Traffic]:
        """Return the traffic of each host so far, summed over its interfaces."""
        return [_sum(self.traffic_of(host)) for host in range(self.count)]

    def traffic_of(self, host: int) -> list[Traffic]:
        """Return the traffic of each interface of a host so far.

        Args:
            host: Number of the host, from 0.
        """
        links = json.loads(ip("-j", "-s", "-n", self._names[host], "link", "show", "type", "veth"))
        counts = {link["ifname"]: (link["stats64"]["tx"], link["stats64"]["rx"]) for link in links}
        return [
            Traffic(sent["bytes"], sent["packets"], received["bytes"], received["packets"])
            for sent, received in (counts[f"eth{interface}"] for interface in range(self.interfaces))
        ]

    def entered(self, host: int) -> AbstractContextManager[None]:
        """Move this thread, and threads that it starts, to a host for a `with` block.

        Args:
            host: Number of the host, from 0.
        """
        return entered(LISTED / self._names[host])

    def namespace(self, host: int) -> Path:
        """Return the namespace file that `entered` enters, for use by other processes.

        Args:
            host: Number of the host, from 0.
        """
        return LISTED / self._names[host]

    def lead_outside(self) -> None:
        """Give every host routes to outside addresses, which lead nowhere.

        Programs, Ray too, derive from these routes the address by which other hosts reach a host.
        """
        for name in self._names:
            gateway = f"10.97.0.{HOSTS_MOST + 1}"
            routes = [f"route add {address} via {gateway} dev {INTERFACE}" for address in _OUTSIDE]
            batch(name, [f"neigh add {gateway} lladdr {_UNUSED_MAC} dev {INTERFACE}", *routes])

    def start(
        self, host: int, words: Sequence[str], environ: Mapping[str, str], output: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program on a host, in a new session.

        Args:
            host: Number of the host, from 0.
            words: The command.
            environ: Environment variables.
            output: File to which its output is appended.
        """
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
        """Return the process ids of all processes on a host.

        Args:
            host: Number of the host, from 0.
        """
        return processes_in(self.namespace(host))

    def end(self, host: int) -> None:
        """Kill all processes on a host, as a power failure does.

        Args:
            host: Number of the host, from 0.
        """
        end_processes(self.namespace(host))

    def cut(self, one: int, other: int, networks: Iterable[int] | None = None) -> None:
        """Silently drop all traffic between two hosts.

        Args:
            one: Number of a host, from 0.
            other: Number of the other host.
            networks: Numbers of the networks (default: all).
        """
        self.cut_way(one, other, networks)
        self.cut_way(other, one, networks)

    def cut_way(self, sender: int, receiver: int, networks: Iterable[int] | None = None) -> None:
        """Silently drop the traffic from one host to another; the opposite direction keeps working.

        Args:
            sender: Number of the sending host, from 0.
            receiver: Number of the receiving host.
            networks: Numbers of the networks (default: all).
        """
        self._wire_neighbour(sender, receiver, networks, _UNUSED_MAC)

    def mend(self, one: int, other: int, networks: Iterable[int] | None = None) -> None:
        """Restore the traffic between two hosts after `cut` or `cut_way`.

        Args:
            one: Number of a host, from 0.
            other: Number of the other host.
            networks: Numbers of the networks (default: all).
        """
        self._wire_neighbour(one, other, networks, None)
        self._wire_neighbour(other, one, networks, None)

    def slow(self, host: int, rate: Rate | None) -> None:
        """Change the rate of a host's links in both directions.

        Args:
            host: Number of the host, from 0.
            rate: The new rate (None: as fast as the machine).
        """
        for network in range(self.interfaces):
            ends = (self._names[host], f"eth{network}"), (self._switch, f"port{network}x{host}")
            for where, device in ends:
                wanted = "noqueue" if rate is None else _bucket(rate)
                run(*f"tc -n {where} qdisc replace dev {device} root {wanted}".split())

    def control_congestion(self, by: str) -> None:
        """Set the TCP congestion control of all hosts.

        Args:
            by: Name of an algorithm of the kernel, such as ``"cubic"``.

        Raises:
            MachineError: The kernel does not have the algorithm.
        """
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
        """Return the traffic of all hosts together, once the last acknowledgements have passed."""
        before = _sum(self.traffic())
        for _ in range(_SETTLING_MOST):
            time.sleep(_SETTLING_SECONDS)
            now = _sum(self.traffic())
            if now == before:
                break
            before = now
        return before

    def _wire(self) -> None:
        """Create the networks, with static neighbours, no IPv6 address and no multicast snooping.

        So nothing but messages is on the wire.
        """
        for network in range(self.interfaces):
            bridge = f"{_BRIDGE}{network}"
            made = f"link add {bridge} type bridge mcast_snooping 0", f"link set {bridge} addrgenmode none"
            batch(self._switch, [*made, f"link set {bridge} up"])
            run(*f"bridge -n {self._switch} fdb add {_UNUSED_MAC} dev {bridge} self permanent".split())
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
        """Remove the namespaces, which removes their interfaces and the pairs' other ends.

        Processes are killed first: they would keep a namespace alive without a name.
        """
        for name in (*self._names, self._switch):
            if (LISTED / name).exists():
                end_processes(LISTED / name)
                ip("netns", "delete", name)


def _sum(each: Sequence[Traffic]) -> Traffic:
    return Traffic(*(sum(counts) for counts in zip(*(vars(one).values() for one in each), strict=True)))


def _card(host: int, network: int) -> str:
    """Locally administered MAC address of a host's interface."""
    return f"02:00:00:00:{network:02x}:{host + 1:02x}"


def _bucket(rate: Rate) -> str:
    """Options of `tc` for a token bucket with this rate."""
    found = _RATE.fullmatch(rate)
    gbit = float(found[1]) * (1 if found[2] == "gbit" else 1e-3) if found else 0.0
    if not gbit:
        raise UserError(f"rate must be a number and mbit or gbit, such as '100mbit', got {rate!r}")
    burst = min(max(round(_BURST_BYTES_PER_GBIT * gbit), _BURST_BYTES_LEAST), _BURST_BYTES_MOST)
    return f"tbf rate {rate} burst {burst} limit {_QUEUE_BYTES}"


def why_not() -> str | None:
    """Return the reason why hosts cannot be created on this machine; None if they can."""
    try:
        with Hosts(2, "10gbit"):
            return None
    except MachineError as error:
        return str(error)

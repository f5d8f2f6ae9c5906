"""Several hosts on one machine: network namespaces joined by a switch, over links of a given rate.

Knows: the programs `ip` and `tc`, names, addresses, counters of interfaces. Does not know: what runs on a
host.

Every host is a namespace with one interface; a further namespace has a bridge, the switch, to which all are
wired by veth pairs. The machine's own interfaces, routes and addresses are never touched. A link is as fast
both ways: a token bucket stands before either end. Needs root, Linux, and Debian's package iproute2.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cotswold.errors import MachineError, UserError

Rate = Literal["1gbit", "10gbit"]
"""As `tc` has it: 10⁹ or 10¹⁰ bits a second."""

INTERFACE = "eth0"
"""The name of a host's interface."""
HOSTS_MOST = 200
HEADER_BYTES = 14 + 20 + 32
"""Of a packet: Ethernet's, IP's, and TCP's with its time stamps."""
_PREFIX = "cotswold"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-\d+-\w+")
_BRIDGE = "switch"
_LISTED = Path("/run/netns")
_TIMEOUT_SECONDS = 30
_SETTLING_SECONDS = 0.05
_SETTLING_MOST = 100
_BURST_BYTES = {"1gbit": 128 << 10, "10gbit": 256 << 10}
"""What may pass at once: at least two of the 64 KiB that the kernel hands over in one go, and much less than
a message, or messages would pass unshaped."""
_QUEUE_BYTES = 64 << 20
"""More than any connection has under way, so that nothing is dropped and sent again."""
_SERIAL = itertools.count()


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

    Raises UserError for a count that is none, MachineError where namespaces cannot be made.
    """

    def __init__(self, count: int, rate: Rate | None = None) -> None:
        if not 1 <= count <= HOSTS_MOST:
            raise UserError(f"{count} hosts cannot be made here; ask for 1 to {HOSTS_MOST}")
        self.count, self.rate = count, rate
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

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"10.97.0.{host + 1}"

    def words(self, host: int) -> Sequence[str]:
        """What to write before a command so that it runs on a host."""
        return ("ip", "netns", "exec", self._names[host])

    def traffic(self) -> list[Traffic]:
        """What every host's interface has sent and received so far."""
        return [self._traffic(name) for name in self._names]

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

    def _traffic(self, name: str) -> Traffic:
        (link,) = json.loads(_ip("-j", "-s", "-n", name, "link", "show", INTERFACE))
        sent, received = link["stats64"]["tx"], link["stats64"]["rx"]
        return Traffic(sent["bytes"], sent["packets"], received["bytes"], received["packets"])

    def _wire(self) -> None:
        """Neighbours are told, and IPv6 has no address, so that nothing but messages is on the wire."""
        _batch(self._switch, [f"link add {_BRIDGE} type bridge", f"link set {_BRIDGE} up"])
        for host, name in enumerate(self._names):
            port = f"port{host}"
            peer = f"peer name {port} netns {self._switch}"
            _ip(*f"-n {name} link add {INTERFACE} address {_card(host)} type veth {peer}".split())
            _batch(
                self._switch,
                [
                    f"link set {port} addrgenmode none",
                    f"link set {port} master {_BRIDGE}",
                    f"link set {port} up",
                ],
            )
            others = [other for other in range(self.count) if other != host]
            _batch(
                name,
                [
                    "link set lo up",
                    f"link set {INTERFACE} addrgenmode none",
                    f"address add {self.address(host)}/24 dev {INTERFACE}",
                    f"link set {INTERFACE} up",
                    *(f"neigh add {self.address(one)} lladdr {_card(one)} dev {INTERFACE}" for one in others),
                ],
            )
            if self.rate is not None:
                bucket = f"tbf rate {self.rate} burst {_BURST_BYTES[self.rate]} limit {_QUEUE_BYTES}"
                for where, device in ((name, INTERFACE), (self._switch, port)):
                    _run(*f"tc -n {where} qdisc add dev {device} root {bucket}".split())

    def _remove(self) -> None:
        """A namespace takes its interfaces along; the pairs' other ends go with them."""
        for name in (*self._names, self._switch):
            if (_LISTED / name).exists():
                _ip("netns", "delete", name)


def _sum(each: Sequence[Traffic]) -> Traffic:
    return Traffic(*(sum(counts) for counts in zip(*(vars(one).values() for one in each), strict=True)))


def _card(host: int) -> str:
    """A locally administered address of the link layer."""
    return f"02:00:00:00:00:{host + 1:02x}"


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

"""Hosts that are network namespaces: links, counters, cleanup."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cotswold.errors import MachineError, UserError
from cotswold.host import address_for_peers
from cotswold.testing import Hosts, is_running, remove_leftovers, wait_until, why_not
from cotswold.testing.hosts import HEADER_BYTES, Traffic

pytestmark = pytest.mark.skipif(
    why_not() is not None, reason="needs root and ip/tc (Debian's iproute2) to make hosts in namespaces"
)
SENT_BYTES = 25_000_000
QUIET_SECONDS = 3.0
TIMEOUT_S = 30
TCP_INFO_BYTES = 208
"""Bytes of Linux's `struct tcp_info` up to `tcpi_bytes_sent`, the last 8 of these."""
FEW_BYTES = 200
"""Tolerance in bytes: a connection starts with a query for an address and with longer headers, and one side
may have counted its end already."""
LISTEN = f"""
import socket
with socket.create_server(("", 4000)) as server:
    print("ready", flush=True)
    with server.accept()[0] as peer:
        left = {SENT_BYTES}
        while left:
            left -= len(peer.recv(min(left, 1 << 20)))
        peer.sendall(b"!")
"""
SEND = f"""
import socket, sys, time
begun = time.monotonic()
with socket.create_connection((sys.argv[1], 4000)) as peer:
    peer.sendall(bytes({SENT_BYTES}))
    peer.recv(1)
    told = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, {TCP_INFO_BYTES})
print(time.monotonic() - begun, int.from_bytes(told[-8:], sys.byteorder))
"""


def listed() -> set[str]:
    folder = Path("/run/netns")
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


def ours() -> set[str]:
    return {name for name in listed() if f"-{os.getpid()}-" in name}


def send(hosts: Hosts, interface: int = 0) -> tuple[float, int]:
    """Return the seconds of a transfer from host 0 to an interface of host 1, and the bytes that TCP sent,
    including retransmissions."""
    with subprocess.Popen(
        [*hosts.words(1), sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True
    ) as listening:
        assert listening.stdout is not None
        try:
            assert listening.stdout.readline() == "ready\n"
            words = [*hosts.words(0), sys.executable, "-c", SEND, hosts.address(1, interface)]
            sent = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        finally:
            listening.kill()
    seconds, sent_bytes = sent.stdout.split()
    return float(seconds), int(sent_bytes)


def test_an_interface_counts_what_was_sent_and_the_headers_of_its_packets() -> None:
    with Hosts(2) as hosts:
        before = hosts.traffic()
        _, tcp_bytes = send(hosts)
        sender, receiver = (now.since(then) for now, then in zip(hosts.traffic(), before, strict=True))
    without_headers = sender.sent_bytes - HEADER_BYTES * sender.sent_packets
    assert without_headers == pytest.approx(tcp_bytes, abs=FEW_BYTES) and tcp_bytes >= SENT_BYTES
    assert SENT_BYTES + HEADER_BYTES < receiver.received_bytes < sender.sent_bytes + FEW_BYTES


def test_nothing_is_on_the_wire_of_hosts_that_say_nothing() -> None:
    with Hosts(2) as hosts:
        time.sleep(QUIET_SECONDS)  # a bridge with an address of IPv6 would tell of it by now
        assert hosts.traffic() == [Traffic(0, 0, 0, 0)] * 2


@pytest.mark.parametrize(("rate", "bits"), [("1gbit", 1e9), ("0.25gbit", 2.5e8), ("200mbit", 2e8)])
def test_a_link_is_no_faster_than_its_rate(rate: str, bits: float) -> None:
    with Hosts(2, rate) as hosts:
        reached = 8 * SENT_BYTES / send(hosts)[0]
    assert 0.1 * bits < reached < 1.02 * bits  # a busy machine is slower than the link


def test_each_interface_of_a_host_is_a_network_of_its_own() -> None:
    with Hosts(2, interfaces=2) as hosts:
        before = hosts.traffic_of(0)
        send(hosts, interface=1)
        first, second = (now.since(then) for now, then in zip(hosts.traffic_of(0), before, strict=True))
    assert first.sent_bytes == 0 and second.sent_bytes > SENT_BYTES


@pytest.mark.parametrize("rate", ["", "100", "100kbit", "mbit", "0mbit", "-1gbit", "1gbit limit 0"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(UserError, match="rate must be a number and mbit or gbit"):
        Hosts(2, rate)


def test_hosts_with_no_interface_are_refused() -> None:
    with pytest.raises(UserError, match="0 interfaces"):
        Hosts(2, interfaces=0)


def test_nothing_is_left_of_hosts_after_an_exception() -> None:
    seen: list[str] = []

    def fail() -> None:
        with Hosts(3, "10gbit"):
            seen.extend(ours())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(seen) == 4 and not ours()  # three, and a switch


def test_what_a_killed_process_left_is_removed_and_that_of_a_living_one_kept() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, kept = f"cotswold-{gone.pid}-0-switch", f"cotswold-{os.getppid()}-999-0"
    for name in (left, kept):
        subprocess.run(["ip", "netns", "add", name], timeout=TIMEOUT_S, check=True)
    try:
        remove_leftovers()
        assert left not in listed() and kept in listed()
    finally:
        subprocess.run(["ip", "netns", "delete", kept], timeout=TIMEOUT_S, check=True)


def test_no_hosts_are_refused() -> None:
    with pytest.raises(UserError, match="0 hosts"):
        Hosts(0)


ANSWER_SECONDS = 0.5


def hears(hosts: Hosts, sender: int, receiver: int, interface: int = 0) -> bool:
    """True if a datagram of one host arrives at another."""
    with hosts.entered(receiver):
        listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with hosts.entered(sender):
        speaking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with listening, speaking:
        listening.bind((hosts.address(receiver, interface), 0))
        listening.settimeout(ANSWER_SECONDS)
        speaking.sendto(b"!", listening.getsockname())
        try:
            return listening.recv(1) == b"!"
        except TimeoutError:
            return False


def test_a_link_may_be_cut_one_way_and_mended() -> None:
    with Hosts(3) as hosts:
        hosts.cut_way(0, 1)
        assert [hears(hosts, 0, 1), hears(hosts, 1, 0), hears(hosts, 0, 2)] == [False, True, True]
        hosts.mend(0, 1)
        assert hears(hosts, 0, 1)
        hosts.cut(1, 2)
        assert [hears(hosts, 1, 2), hears(hosts, 2, 1), hears(hosts, 1, 0)] == [False, False, True]


def test_one_of_the_networks_may_be_cut() -> None:
    with Hosts(2, interfaces=2) as hosts:
        hosts.cut(0, 1, [1])
        assert [hears(hosts, 0, 1), hears(hosts, 0, 1, interface=1)] == [True, False]
        hosts.mend(0, 1)
        assert hears(hosts, 0, 1, interface=1)


def test_what_is_cut_reaches_no_other_host_either() -> None:
    with Hosts(3) as hosts:
        hosts.cut(0, 1)
        hears(hosts, 0, 1)
        sent, *others = hosts.traffic()
    assert sent.sent_packets == 1 and others == [Traffic(0, 0, 0, 0)] * 2


def test_a_link_is_slowed_and_freed() -> None:
    with Hosts(2) as hosts:
        hosts.slow(0, "200mbit")
        slow = send(hosts)[0]
        hosts.slow(0, None)
        assert send(hosts)[0] < slow / 2


def test_congestion_is_controlled_as_is_said_whatever_the_machine_does() -> None:
    with Hosts(2) as hosts:
        with pytest.raises(MachineError, match="Unknown tcp congestion algorithm"):
            hosts.control_congestion("nothing-at-all")
        hosts.control_congestion("reno")
        with hosts.entered(0):
            server = socket.create_server((hosts.address(0), 0))
        with server, hosts.entered(1), socket.create_connection(server.getsockname()) as caller:
            by = caller.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert by.rstrip(b"\0") == b"reno"


def test_a_program_is_started_on_a_host_and_found_there_with_what_it_has_started(tmp_path: Path) -> None:
    words = ["sh", "-c", "ip -o address show dev eth0; setsid sleep 60 & echo ready; wait"]
    with Hosts(2) as hosts:
        process = hosts.start(1, words, dict(os.environ), tmp_path / "printed")
        wait_until(lambda: "ready" in (tmp_path / "printed").read_text(), "it has started another")
        assert len(hosts.processes(1)) == 2
        assert process.pid in hosts.processes(1) and not hosts.processes(0)
        assert hosts.address(1) in (tmp_path / "printed").read_text()
        pids = hosts.processes(1)
        hosts.end(1)
        assert not any(map(is_running, pids)) and not hosts.processes(1)
        process.wait(TIMEOUT_S)


def test_nothing_runs_on_hosts_that_are_gone(tmp_path: Path) -> None:
    with Hosts(1) as hosts:
        process = hosts.start(0, ["sleep", "60"], dict(os.environ), tmp_path / "printed")
    assert process.wait(TIMEOUT_S) < 0


def test_a_host_with_a_way_outside_knows_its_address() -> None:
    with Hosts(2, interfaces=2) as hosts:
        hosts.lead_outside()
        with hosts.entered(1):
            assert address_for_peers({}) == hosts.address(1)

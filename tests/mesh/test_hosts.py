"""Grids over several hosts, which are network namespaces: what is on the wire is what the plans say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from cotswold.bench.crew import Crew
from cotswold.bench.hosts import Hosts, Rate, remove_leftovers, why_not
from cotswold.bench.rank import Rank
from cotswold.bench.scaling_wire import GLOO_BYTES, HEADER_BYTES, SMALL, Found, Spot, settled, trained
from cotswold.errors import UserError
from cotswold.mesh import Mesh, partition

pytestmark = pytest.mark.skipif(
    why_not() is not None, reason="needs root and ip/tc (Debian's iproute2) to make hosts in namespaces"
)
SENT_BYTES = 25_000_000
TIMEOUT_S = 30
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
print(time.monotonic() - begun)
"""


def listed() -> set[str]:
    folder = Path("/run/netns")
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


def ours() -> set[str]:
    return {name for name in listed() if f"-{os.getpid()}-" in name}


def send(hosts: Hosts) -> float:
    """Seconds of sending from host 0 to host 1, begun and ended by host 0."""
    with subprocess.Popen(
        [*hosts.words(1), sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True
    ) as listening:
        assert listening.stdout is not None
        try:
            assert listening.stdout.readline() == "ready\n"
            words = [*hosts.words(0), sys.executable, "-c", SEND, hosts.address(1)]
            sent = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        finally:
            listening.kill()
    return float(sent.stdout)


def test_an_interface_counts_what_was_sent_and_the_headers_of_its_packets() -> None:
    with Hosts(2) as hosts:
        before = hosts.traffic()
        send(hosts)
        sender, receiver = (now.since(then) for now, then in zip(hosts.traffic(), before, strict=True))
    without_headers = sender.sent_bytes - HEADER_BYTES * sender.sent_packets
    assert SENT_BYTES <= without_headers < 1.01 * SENT_BYTES  # TCP may send a little twice
    assert SENT_BYTES <= receiver.received_bytes < 1.01 * sender.sent_bytes


def test_a_link_is_no_faster_than_its_rate() -> None:
    with Hosts(2, "1gbit") as hosts:
        assert 8 * SENT_BYTES / send(hosts) < 1.02e9


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


@cache
def training(hosts: int, rate: Rate) -> Found:
    begun = time.monotonic()
    found = trained(Spot(SMALL, 24, "2x2", hosts, rate))
    assert time.monotonic() - begun < 120
    return found


OVER: list[tuple[int, Rate]] = [(2, "1gbit"), (4, "10gbit")]


@pytest.mark.parametrize(("hosts", "rate"), OVER)
def test_ten_steps_over_hosts_agree_with_one_process(hosts: int, rate: Rate) -> None:
    assert training(hosts, rate).error <= 1e-10


@pytest.mark.parametrize(("hosts", "rate"), OVER)
def test_bytes_on_the_wire_are_those_of_the_plans_and_headers(hosts: int, rate: Rate) -> None:
    wire = training(hosts, rate).wire
    assert wire.planned_bytes > 1e6
    assert abs(wire.unexplained) < 0.005
    assert wire.header_bytes == wire.packets * HEADER_BYTES + wire.messages * GLOO_BYTES


SUMMED, GATHERED, CALLS = 300_000, 100_000, 5


def _work(rank: Rank) -> tuple[int, int]:
    """Bytes that the mesh counts of sums, maxima, gathering, and of a module's calls and gradients."""
    if "partitioned" not in rank.kept:
        torch.manual_seed(0)
        rank.kept["partitioned"] = partition(
            nn.Sequential(nn.Conv2d(4, 64, 3, padding=1), nn.Conv2d(64, 64, 3)), "1x3"
        )
    mesh, partitioned = Mesh.of("1x3"), rank.kept["partitioned"]
    mesh.take_count()
    for _ in range(CALLS):
        mesh.sum_in_place(torch.ones(SUMMED))
        mesh.largest_in_place(torch.ones(SUMMED // 2, dtype=torch.int64))
        mesh.gather(torch.ones(GATHERED))
    of_mesh = mesh.take_count()
    for _ in range(CALLS):
        partitioned(torch.ones(2, 4, 20, 33)).square().mean().backward()
    return of_mesh, mesh.take_count()


def test_bytes_that_a_mesh_counts_are_those_on_the_wire_sums_and_gradients_too() -> None:
    with Hosts(3) as hosts, Crew(3, hosts=hosts) as crew:
        crew.call(_work)  # which connects the ranks
        before = settled(hosts)
        counted = crew.call(_work)
        wire = settled(hosts).since(before)
    assert len(set(counted)) == 1
    of_mesh, of_partitioned = counted[0]
    # a ring of three: 2 (P - 1) n of a sum, P (P - 1) n of what is gathered
    assert of_mesh == CALLS * (4 * 4 * SUMMED + 4 * 8 * (SUMMED // 2) + 6 * 4 * GATHERED)
    assert of_partitioned > CALLS * 4 * 4 * (4 * 64 * 9 + 64 * 64 * 9)
    assert abs((wire.sent_bytes - wire.sent_packets * HEADER_BYTES) / (of_mesh + of_partitioned) - 1) < 0.01

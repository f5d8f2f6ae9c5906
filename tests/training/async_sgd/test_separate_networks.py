"""A cluster whose hosts have a network for each purpose: messages and bytes on each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.training.runs import events
from tests.training.async_sgd.test_strategy import recipe_of

from cotswold.host import Token
from cotswold.host.token import CLUSTER_VARIABLE
from cotswold.run import RunDirectory
from cotswold.testing import Hosts, wait_until, why_not
from cotswold.testing.hosts import Traffic

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]
ADMINISTRATION, UPDATES, REPLICATION = range(3)
SERVERS, TRAINER = range(3), 3
NAMES = {
    UPDATES: {"Update", "PullNewer", "PulledNewer"},
    REPLICATION: {"Prepare", "Prepared"},
    ADMINISTRATION: {"Heartbeat", "LeaseGrant", "Assign", "Assigned"},
}
"""Messages that identify a network's purpose; those of the third are secret everywhere."""
LAYERS = '{type = "linear", features = 300}, {type = "relu"}, {type = "linear", features = 300}'
TIMEOUT_S = 120


def named(name: str) -> bytes:
    """Return the name of a message as it starts in a frame."""
    return bytes([0xA0 + len(name)]) + name.encode()


@contextmanager
def heard(hosts: Hosts, host: int, network: int) -> Iterator[set[str]]:
    """Yield the readable names of messages that pass an interface of a host."""
    found: set[str] = set()
    with hosts.entered(host):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        raw.bind((f"eth{network}", 3))
    raw.settimeout(0.2)
    over = threading.Event()

    def listen() -> None:
        while not over.is_set():
            try:
                packet = raw.recv(1 << 17)
            except TimeoutError:
                continue
            found.update(name for some in NAMES.values() for name in some if named(name) in packet)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        raw.close()


def started(hosts: Hosts, folder: Path, environ: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    """Start a station on each server's host."""
    found = []
    for host in SERVERS:
        given = {
            "listen": hosts.address(host, ADMINISTRATION),
            "client-address": hosts.address(host, UPDATES),
            "replication-address": hosts.address(host, REPLICATION),
            "controllers": hosts.address(0, ADMINISTRATION),
            "servers": "1",
            "folder": str(folder / f"station-{host}"),
        }
        words = [sys.executable, "-m", "cotswold", "cluster", "start", "--no-encrypt", "--no-disks"]
        words += [word for name, text in given.items() for word in (f"--{name}", text)]
        found.append(hosts.start(host, words, environ, folder / f"station-{host}.log"))
    return found


def passed(hosts: Hosts, before: list[list[Traffic]]) -> list[list[Traffic]]:
    """Return the traffic by host and network."""
    return [
        [now.since(then) for now, then in zip(hosts.traffic_of(host), before[host], strict=True)]
        for host in range(hosts.count)
    ]


@pytest.mark.soak
def test_updates_replication_and_administration_are_on_networks_of_their_own(tmp_path: Path) -> None:
    environ = {**os.environ, CLUSTER_VARIABLE: Token.new().text, "OMP_NUM_THREADS": "1"}
    recipe = recipe_of(
        tmp_path, "workers = 2, encrypt = false, max_buckets = 8", epochs=3, push_format="gradient"
    )
    recipe.write_text(recipe.read_text().replace("layers = [", f"layers = [{LAYERS}, "))
    run, log = tmp_path / "run", tmp_path / "train.log"
    words = [sys.executable, "-m", "cotswold", "train", str(recipe), "--run", str(run)]
    words += ["--stores", str(tmp_path / "stores")]
    with Hosts(4, interfaces=3) as hosts, ExitStack() as held:
        stations = started(hosts, tmp_path, environ)
        joined = tmp_path / "station-0" / "events.jsonl"
        wait_until(
            lambda: joined.exists() and joined.read_text().count('"joined"') == 3, "all are there", TIMEOUT_S
        )
        idle = [hosts.traffic_of(host) for host in range(hosts.count)]
        assert all(each[ADMINISTRATION].sent_packets for each in idle[:TRAINER])
        assert not any(each[UPDATES].sent_packets + each[REPLICATION].sent_packets for each in idle)
        listening = {
            (host, network): held.enter_context(heard(hosts, host, network))
            for host in range(hosts.count)
            for network in range(hosts.interfaces)
        }
        place = f'cluster.controllers="{hosts.address(0, ADMINISTRATION)}"'
        training = hosts.start(TRAINER, [*words, "--set", place], environ, log)
        assert training.wait(TIMEOUT_S) == 0, log.read_text()
        bytes_of = passed(hosts, idle)
        for process in stations:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(TIMEOUT_S) for process in stations] == [0] * 3
    check_names(listening)
    (end,) = events(RunDirectory(run), "phase_end")
    assert isinstance(end["pushed_bytes"], int)
    check_bytes(bytes_of, end["pushed_bytes"])


def check_names(listening: dict[tuple[int, int], set[str]]) -> None:
    for network, its in NAMES.items():
        here = set().union(*(found for (_, where), found in listening.items() if where == network))
        assert here <= its, f"network {network} has {here - its}"
        assert here == its or network == ADMINISTRATION, f"network {network} lacks {its - here}"
    assert not listening[TRAINER, REPLICATION]


def check_bytes(bytes_of: list[list[Traffic]], pushed_bytes: int) -> None:
    """Check that pushed bytes are on the network of updates, and again on that of replication."""
    sent = [[each.sent_bytes for each in networks] for networks in bytes_of]
    assert sent[TRAINER][UPDATES] > pushed_bytes > 5_000_000
    assert sent[TRAINER][REPLICATION] == 0
    between_servers = sum(sent[host][REPLICATION] for host in SERVERS)
    assert between_servers > pushed_bytes / 2, "several pushes may be one change"
    assert sum(networks[ADMINISTRATION] for networks in sent) < pushed_bytes / 4

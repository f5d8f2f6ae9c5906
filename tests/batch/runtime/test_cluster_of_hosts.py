"""A cluster of several hosts (network namespaces): its links are cut, slowed and recorded."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.processes.host_processes import HostProcesses
from tests.support.replicas.works import LeastSquares

from cotswold.batch.runtime.cluster import BatchCluster
from cotswold.batch.runtime.entry import open_cluster
from cotswold.batch.runtime.status import ClusterStatus
from cotswold.host import ForkServer
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.coordinator_loop import ClusterFailedError
from cotswold.testing import Hosts, wait_until, why_not
from cotswold.transport import address

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
WORK = "tests.support.replicas.works:least_squares"
PATTERNS, SIZE = 1003, 2000
Told = list[tuple[str, Mapping[str, object]]]


@contextmanager
def opened(
    server: ForkServer,
    hosts: Hosts,
    *,
    told: Told | None = None,
    there: int | None = None,
    seconds: float = 0.0,
    **settings: Any,
) -> Iterator[tuple[BatchCluster, HostProcesses]]:
    """Yield a cluster whose coordinator is on the first host, with its processes and their machines."""
    chosen = {"portion_size": 20, "shard_bytes": 1 << 13, "alone_seconds": 20.0, "workers": 2, **settings}
    heard: Told = [] if told is None else told
    with ExitStack() as stack:
        stack.enter_context(hosts.entered(0))
        address.this_host.cache_clear()
        stack.callback(address.this_host.cache_clear)
        processes = HostProcesses(server, hosts, there=there)
        stack.callback(processes.close)
        cluster = open_cluster(
            ClusterSettings(**chosen),
            WORK,
            {"samples": PATTERNS, "size": SIZE, "seconds": seconds},
            processes=processes,
            host=hosts.address(0),
            on_event=lambda kind, more: heard.append((kind, more)),
        )
        yield stack.enter_context(cluster), processes


def alone(point: torch.Tensor) -> tuple[float, torch.Tensor]:
    work = LeastSquares(PATTERNS, SIZE, 0, torch.float64)
    work.parameters.copy_(point)
    gradient = torch.zeros(SIZE, dtype=torch.float64)
    found = work.add(range(PATTERNS), gradient)
    return found.value / PATTERNS, gradient / PATTERNS


def some_point() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(5).standard_normal(SIZE))


EXPECTED = alone(some_point())


def begin(cluster: BatchCluster, workers: int) -> None:
    """Evaluate until ``workers`` workers have joined."""
    cluster.write("x", some_point())
    until(cluster, lambda: cluster.status().workers == workers)


def until(cluster: BatchCluster, holds: Callable[[], bool], seconds: float = 20) -> None:
    """Evaluate, and check the results, until a condition holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        check(cluster)


def check(cluster: BatchCluster) -> None:
    """Check that an evaluation counts every sample once, with the value and gradient of one process."""
    found = cluster.evaluate("x", "g")
    assert found.value == pytest.approx(EXPECTED[0], rel=1e-13)
    np.testing.assert_allclose(cluster.read("g"), EXPECTED[1], rtol=1e-9, atol=1e-9)
    assert cluster.last is not None and cluster.last.samples == PATTERNS
    assert cluster.last.portions == tuple(range(-(-PATTERNS // 20)))


@contextmanager
def recorded(hosts: Hosts, host: int) -> Iterator[Callable[[], bytes]]:
    """Record all traffic of a host's first interface."""
    packets: list[bytes] = []
    with hosts.entered(host):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    raw.settimeout(0.2)
    ended = threading.Event()

    def record() -> None:
        while not ended.is_set():
            try:
                packets.append(raw.recv(1 << 17))
            except TimeoutError:
                continue

    recording = threading.Thread(target=record)
    recording.start()
    try:
        yield lambda: b"".join(packets)
    finally:
        ended.set()
        recording.join()
        raw.close()


@pytest.mark.parametrize("travel", ["sandblaster", "bunyip"])
@pytest.mark.parametrize("encrypt", [True, False])
def test_hosts_give_what_one_process_gives_and_only_plain_ones_are_read_by_others(
    fork_server: ForkServer, encrypt: bool, travel: str
) -> None:
    helped: set[str] = set()
    secret = [some_point().numpy()[:4].tobytes(), b"server-0"]
    with (
        Hosts(3) as hosts,
        recorded(hosts, 1) as heard,
        opened(
            fork_server,
            hosts,
            workers=3,
            servers=2,
            encrypt=encrypt,
            point_transfer=travel,
            spread_servers=True,
        ) as (cluster, _),
    ):
        begin(cluster, 3)

        def has_passed() -> bool:
            """True if all workers have computed, and their traffic was read."""
            cluster.write("x", some_point())
            check(cluster)
            assert cluster.last is not None
            helped.update(cluster.last.account.by_name)
            return len(helped) == 3 and (encrypt or all(one in heard() for one in secret))

        wait_until(has_passed, "every worker has helped and is heard")
        words = heard()
    assert len(words) > 8 * SIZE
    assert [one in words for one in secret] == [not encrypt] * 2


def test_a_link_that_is_cut_in_an_evaluation_costs_a_worker_and_no_pattern(fork_server: ForkServer) -> None:
    told: Told = []
    with (
        Hosts(3) as hosts,
        opened(fork_server, hosts, told=told, workers=3, seconds=0.02, silent_seconds=1.0) as (cluster, _),
    ):
        begin(cluster, 3)
        cluster.watch(once(lambda: hosts.cut(0, 2)))  # the coordinator and the server are on 0
        check(cluster)
        assert cluster.status().workers == 2
        cluster.watch(None)
        hosts.mend(0, 2)
        until(cluster, lambda: cluster.status().workers == 3)
    assert [more["name"] for kind, more in told if kind == "lost"] == ["worker-3"]


@pytest.mark.soak
@pytest.mark.parametrize("travel", ["sandblaster", "bunyip"])
def test_a_worker_without_a_server_is_done_without_and_comes_back(
    fork_server: ForkServer, travel: str
) -> None:
    told: Told = []
    settings: dict[str, Any] = {
        "workers": 2,
        "spread_servers": True,
        "point_transfer": travel,
        "silent_seconds": 0.7,
    }
    with (
        Hosts(3) as hosts,  # workers on 0 and 1, the server on 2
        opened(fork_server, hosts, told=told, seconds=0.02, **settings) as (cluster, _),
    ):
        begin(cluster, 2)
        cluster.watch(once(lambda: hosts.cut(1, 2)))
        check(cluster)
        cluster.watch(None)
        until(cluster, lambda: "worker-2" not in cluster.workers)
        hosts.mend(1, 2)
        until(cluster, lambda: cluster.status().workers == 2)
        until(cluster, lambda: len(counted_by(cluster)) == 2)
    (ended,) = [str(more["reason"]) for kind, more in told if kind == "exited"]
    assert "worker-2 lost server-0 (its connection ended)" in ended


def test_a_server_behind_a_cut_link_is_an_error_that_names_it(fork_server: ForkServer) -> None:
    settings: dict[str, Any] = {"workers": 2, "spread_servers": True, "silent_seconds": 0.5}
    with (
        Hosts(3) as hosts,
        opened(fork_server, hosts, seconds=0.02, **settings) as (cluster, _),
    ):
        begin(cluster, 2)
        cluster.watch(once(lambda: hosts.cut(0, 2)))
        with pytest.raises(ClusterFailedError, match=r"server-0 is lost: .*its connection ended"):
            until(cluster, lambda: False)


def test_workers_that_cannot_reach_each_other_do_not_stop_a_reduction(fork_server: ForkServer) -> None:
    told: Told = []
    with (
        Hosts(4) as hosts,  # the server on 0
        opened(
            fork_server,
            hosts,
            told=told,
            workers=4,
            point_transfer="bunyip",
            seconds=0.02,
            silent_seconds=0.8,
        ) as (cluster, _),
    ):
        begin(cluster, 4)
        pairs = [(1, 2), (1, 3), (2, 3)]

        def cut() -> None:
            for pair in pairs:
                hosts.cut(*pair)

        cluster.watch(once(cut))
        check(cluster)
        cluster.watch(None)
        before = len(told)
        check(cluster)
        assert "aborted" not in [kind for kind, _ in told[before:]]  # it is known by now
        assert len(counted_by(cluster)) == 4


def counted_by(cluster: BatchCluster) -> Mapping[str, int]:
    """Return the portions of the last evaluation by worker."""
    assert cluster.last is not None
    return {name: count for name, count in dict(cluster.last.account.by_name).items() if count}


@pytest.mark.parametrize("travel", ["sandblaster", "bunyip"])
def test_a_slow_link_makes_an_evaluation_slow_and_not_wrong(fork_server: ForkServer, travel: str) -> None:
    with (
        Hosts(2, "1gbit") as hosts,
        opened(fork_server, hosts, workers=2, point_transfer=travel, silent_seconds=1.0) as (cluster, _),
    ):
        begin(cluster, 2)
        hosts.slow(1, "1mbit")
        for _ in range(3):
            check(cluster)


def once(act: Callable[[], object]) -> Callable[[ClusterStatus], None]:
    """Return a watcher that acts once, when a few portions of an evaluation are done."""
    done: list[object] = []

    def watch(status: ClusterStatus) -> None:
        if not done and 0 < status.done < status.portions:
            done.append(act())

    return watch

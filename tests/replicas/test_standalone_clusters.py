"""Clusters of parameter servers that outlive runs: real processes, some killed or stopped."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.replicas.test_disks_of_servers import Events, check_after_losses, told
from tests.replicas.test_replicated_servers import check_tallies, tallied
from tests.support.replicas.opened_replicas import Opener, check_account
from tests.support.replicas.opened_replicas import opened as opened
from tests.support.replication.scripted_controllers import controllers
from tests.support.replication.standalone_cluster import Host, settings_of, standing, until

from cotswold.errors import MachineError, UserError
from cotswold.host import ForkServer, Token
from cotswold.host.token import CLUSTER_VARIABLE
from cotswold.replicas import startup as replica_opening
from cotswold.replication.client.admin import AdminClient
from cotswold.replication.metadata import MetadataLocation
from cotswold.wire import NotLeader

pytestmark = pytest.mark.slow
Cluster = tuple[list[Host], str]


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Token:
    found = Token.new()
    monkeypatch.setenv(CLUSTER_VARIABLE, found.text)
    return found


@pytest.fixture
def cluster(tmp_path: Path, fork_server: ForkServer, token: Token) -> Iterator[Cluster]:
    with standing(tmp_path, fork_server, token) as found:
        yield found


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def at(*places: str) -> dict[str, object]:
    return tallied(standing=places, servers=1, copies=1, silent=20.0, buckets=4)


@pytest.mark.soak
def test_a_run_learns_on_servers_that_outlive_it_and_another_comes_after_it(
    opened: Opener, cluster: Cluster
) -> None:
    (host,), place = cluster
    before = host.processes
    for _ in range(2):
        with opened(**at(place)) as replicas:
            check_tallies(replicas)
    assert host.processes == before, "nobody has ended"


@pytest.mark.soak
def test_two_runs_at_once_do_not_meet(opened: Opener, cluster: Cluster) -> None:
    _, place = cluster
    with opened(**at(place)) as one, opened(**at(place)) as other:
        for _ in range(4):
            one.proceed(0.3)
            other.proceed(0.3)
        check_tallies(one)
        check_tallies(other)


@pytest.mark.soak
def test_servers_and_the_controller_are_killed_and_started_again_and_every_sample_counts_once(
    opened: Opener, cluster: Cluster
) -> None:
    (host,), place = cluster
    with opened(**at(place)) as replicas:
        replicas.proceed(0.5)
        first = sorted(each for each in host.processes if each.startswith("server"))[0]
        os.kill(host.processes[first], signal.SIGKILL)
        replicas.proceed(1.0)
        (controller,) = [each for each in host.processes if each.startswith("controller")]
        os.kill(host.processes[controller], signal.SIGKILL)
        check_tallies(replicas)
    assert any("took over" in each for each in host.told("elected"))
    until(lambda: len(host.processes) == 4)
    assert first not in host.processes and f"{first}.1" in host.processes


def test_all_servers_are_killed_at_once_and_the_run_goes_on_from_their_disks(
    opened: Opener, cluster: Cluster
) -> None:
    (host,), place = cluster
    with opened(**at(place)) as replicas:
        replicas.proceed(1.5)
        for name, process in host.processes.items():
            if name.startswith("server"):
                os.kill(process, signal.SIGKILL)
        check_after_losses(replicas)
    assert len(host.told("recovered")) == 4


@pytest.mark.soak
def test_a_run_waits_for_servers_that_are_all_away_for_longer_than_silence(
    opened: Opener, cluster: Cluster
) -> None:
    (host,), place = cluster
    with opened(**{**at(place), "silent": 1.5}) as replicas:
        replicas.proceed(0.5)
        servers = [process for name, process in host.processes.items() if name.startswith("server")]
        for process in servers:
            os.kill(process, signal.SIGSTOP)
        replicas.proceed(4.0)
        for process in servers:
            os.kill(process, signal.SIGCONT)
        check_tallies(replicas)


@pytest.mark.soak
def test_the_run_of_another_token_is_refused_and_nothing_of_it_is_read(
    opened: Opener, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, place = cluster
    monkeypatch.setenv(CLUSTER_VARIABLE, Token.new().text)
    with pytest.raises(MachineError, match="a process refuses this token"):
        opened(**at(place), start=2.0).close()


def test_a_run_is_told_why_the_others_do_not_answer_where_a_controller_follows(
    opened: Opener, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_opening, "_CONTROLLERS_SECONDS", 3.0)
    with (
        free_ports(2) as (follows, away),
        controllers(token, [follows], lambda name, message: [NotLeader(1, "")]),
        pytest.raises(
            MachineError,
            match=f"and none leads: .* as their hosts say; at 127.0.0.1:{away} no process listens",
        ),
    ):
        opened(**at(f"127.0.0.1:{follows}", f"127.0.0.1:{away}"), start=2.0).close()


def test_a_run_without_the_clusters_token_is_told_so(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLUSTER_VARIABLE, raising=False)
    monkeypatch.delenv("COTSWOLD_TOKEN", raising=False)
    with pytest.raises(UserError, match="COTSWOLD_CLUSTER_TOKEN"):
        opened(**at("127.0.0.1:7400"))


def test_a_host_supervisor_that_ends_takes_its_processes_with_it(
    tmp_path: Path, fork_server: ForkServer, token: Token
) -> None:
    with standing(tmp_path, fork_server, token) as ((host,), _):
        processes = list(host.processes.values())
        assert processes and all(map(lives, processes))
    until(lambda: not any(map(lives, processes)))


@pytest.mark.soak
def test_a_host_that_is_asked_to_end_has_on_its_disks_what_was_acknowledged(
    opened: Opener, tmp_path: Path, fork_server: ForkServer, token: Token
) -> None:
    events: Events = []
    with free_ports(1) as (port,):
        settings = replace(settings_of(tmp_path / "a", port, copies=1), flush_seconds=60.0)
        host = Host(settings, token, fork_server)
        try:
            until(lambda: len(host.told("joined")) == 3)
            with opened(**at(f"127.0.0.1:{port}"), events=events) as replicas:
                replicas.proceed(1.0)
                replicas.pause()
                host.close()
                host = Host(settings, token, fork_server)
                replicas.resume()
                check_tallies(replicas)
            assert "no samples that counted are lost" in told(events, "samples_lost")
            assert len(host.told("recovered")) == 4
        finally:
            host.close()


def test_a_host_whose_controller_does_not_reach_its_state_says_so_and_begins_servers_once_it_does(
    tmp_path: Path, fork_server: ForkServer, token: Token
) -> None:
    with free_ports(2) as (port, nobody):
        place = MetadataLocation(etcd=(f"127.0.0.1:{nobody}",))
        host = Host(replace(settings_of(tmp_path / "a", port, servers=1), place=place), token, fork_server)
        try:
            until(lambda: host.told("metadata") and host.told("waiting"))
            assert f"127.0.0.1:{nobody}" in host.told("metadata")[0]
            assert "none has led for" in host.told("waiting")[0]
            assert [each.partition("-")[0] for each in host.processes] == ["controller"]
            with (
                AdminClient([f"127.0.0.1:{port}"], token, wait_seconds=1.5) as operator,
                pytest.raises(MachineError, match=r"that leads has answered for 1.5 s: .* its host says why"),
            ):
                operator.status()
        finally:
            host.close()


def test_a_second_host_of_one_name_begins_servers_with_other_names(
    tmp_path: Path, fork_server: ForkServer, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where names given a moment ago are
    with standing(tmp_path, fork_server, token, servers=2) as ((first,), place):
        port = int(place.rpartition(":")[2])
        settings = replace(settings_of(tmp_path / "other", port, servers=1), has_controller=False)
        other = Host(settings, token, fork_server)
        try:
            until(lambda: other.processes)
            assert list(other.processes) == ["server-a-2"]
            until(lambda: any("server-a-2" in each for each in first.told("joined")))
        finally:
            other.close()


@pytest.mark.soak
def test_servers_of_a_second_host_have_copies_and_take_over(
    opened: Opener, tmp_path: Path, fork_server: ForkServer, token: Token
) -> None:
    with (
        standing(tmp_path, fork_server, token, hosts=2, servers=1) as (hosts, place),
        opened(**at(place)) as replicas,
    ):
        replicas.proceed(1.0)
        for name, process in hosts[0].processes.items():
            if name.startswith("server"):
                os.kill(process, signal.SIGKILL)
        check_tallies(replicas)
        check_account(replicas)
    assert any("took over" in each for each in hosts[0].told("elected"))

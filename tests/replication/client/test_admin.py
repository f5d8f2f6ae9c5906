"""A cluster inspected, drained, backed up and restored during a run: real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from tests.ports import free_ports
from tests.replicas.test_replicated_servers import check_tallies
from tests.replicas.test_standalone_clusters import at
from tests.replicas.test_standalone_clusters import token as token
from tests.support.replicas.opened_replicas import PATTERNS, Opener
from tests.support.replicas.opened_replicas import opened as opened
from tests.support.replication.standalone_cluster import Host, settings_of, standing, until

from cotswold.api.servers.backups import restore_backup, write_backup
from cotswold.api.servers.cluster_admin import explained, operator, overview, run_meant
from cotswold.checkpoint import CheckpointManager
from cotswold.errors import MachineError, UserError
from cotswold.host import ForkServer, Token
from cotswold.replication.client.admin import AdminClient
from cotswold.replication.runtime.drain_progress import DrainProgress
from cotswold.replication.runtime.host_settings import DISKS_FOLDER, METADATA_FILE

pytestmark = pytest.mark.slow
Cluster = tuple[Host, str, AdminClient]


@pytest.fixture
def cluster(tmp_path: Path, fork_server: ForkServer, token: Token) -> Iterator[Cluster]:
    with standing(tmp_path / "hosts", fork_server, token) as ((host,), place), operator(place) as found:
        yield host, place, found


def disks(host: Host) -> Path:
    return host.folder / "servers"


def test_servers_runs_and_buckets_are_seen_and_nothing_is_left_of_a_run_that_ended(
    opened: Opener, cluster: Cluster
) -> None:
    host, place, operator = cluster
    with opened(**at(place)) as replicas:
        replicas.proceed(1.5)
        found = overview(operator)
        assert [each.state for each in found.status.servers] == ["living"] * 3
        (run,) = found.status.runs
        assert run.buckets == 4 and found.status.replication_factor == 2
        processes = {name: each.process for name, each in found.reports.items()}
        controller = {found.status.controller: found.status.process}
        assert processes | controller == host.processes and run.name == ""
        assert sum(len(each.copies) for each in found.reports.values()) == 8
        assert all(each.has_disk and each.networks[0].received_bytes for each in found.reports.values())
        with pytest.raises(UserError, match=r"no bucket '99'; the cluster has .*/0000, .*/0001"):
            explained(operator, "99")
        bucket = explained(operator, "2")
        assert bucket.bucket == f"{run.run}/0002" and len(bucket.secondaries) == 1
        assert bucket.copies[bucket.primary].role == "primary" and bucket.copies[bucket.primary].index > 1
        assert run_meant(operator, run.run[:6]) == run.run
        check_tallies(replicas)
    until(lambda: not overview(operator).status.runs)
    until(lambda: not any(each.copies for each in overview(operator).reports.values()))


@pytest.mark.soak
def test_a_run_that_goes_on_has_the_cluster_forget_what_a_killed_process_of_it_left(
    opened: Opener, cluster: Cluster, tmp_path: Path
) -> None:
    _, place, operator = cluster
    note = str(tmp_path / "parameter-servers.json")
    with opened(**at(place), note=note) as replicas:
        replicas.proceed(0.3)
        (left,) = [each.run for each in overview(operator).status.runs]
        with opened(**at(place), note=note) as again:
            again.proceed(0.3)
            until(lambda: left not in [each.run for each in overview(operator).status.runs])
            assert len(overview(operator).status.runs) == 1
            check_tallies(again)
    assert json.loads(Path(note).read_text())["before"] == [], "a controller has said so"


@pytest.mark.soak
def test_a_server_is_drained_while_a_run_learns_and_taken_back(opened: Opener, cluster: Cluster) -> None:
    _, place, operator = cluster
    with opened(**at(place)) as replicas:
        replicas.proceed(0.5)
        victim = overview(operator).status.servers[0].name
        *_, last = operator.drain(victim, 20.0)
        assert last.left == 0
        (seen,) = [each for each in overview(operator).status.servers if each.name == victim]
        assert seen.state in ("draining", "drained") and (seen.copies, seen.leads) == (0, 0)
        operator.undrain(victim)
        check_tallies(replicas)
    with pytest.raises(UserError, match="no server 'nobody'"):
        next(operator.drain("nobody", 1.0))


def back_up(opened: Opener, cluster: Cluster, backup: Path) -> None:
    """Back up the cluster during a run."""
    _, place, operator = cluster
    with opened(**at(place)) as replicas:
        replicas.proceed(1.0)
        said = write_backup(operator, backup, None, lambda doing, done: None)
        assert said.startswith(f"{backup} has 4 buckets of 1 run, and ")
        replicas.proceed(0.2)
        check_tallies(replicas)


@pytest.mark.soak
def test_a_backup_of_a_running_cluster_is_restored_into_another(
    opened: Opener, cluster: Cluster, tmp_path: Path, fork_server: ForkServer, token: Token
) -> None:
    *_, operator_ = cluster
    backup, folder = tmp_path / "backup", tmp_path / "restored"
    back_up(opened, cluster, backup)
    (run,) = [each.name for each in (backup / "checkpoints").iterdir()]
    (checkpoint,) = [
        CheckpointManager(backup / "checkpoints" / run, identity=run).load(path)
        for path in CheckpointManager(backup / "checkpoints" / run, identity=run).paths()
    ]
    with pytest.raises(UserError, match="already exists"):
        write_backup(operator_, backup, None, lambda doing, done: None)
    with free_ports(1) as (port,):
        settings = settings_of(folder, port, servers=2, name="r")
        restore_backup(backup, folder, settings.at, settings.name, None)
        with pytest.raises(UserError, match="contains a cluster"):
            restore_backup(backup, folder, settings.at, settings.name, None)
        host = Host(settings, token, fork_server)
        try:
            until(lambda: len(host.told("recovered")) == 4)
            assert all("restored; server-r-0.1 starts" in each for each in host.told("recovered"))
            assert not any("server-r-0 " in each for each in host.told("lost")), "nobody was called so"
            with operator(f"127.0.0.1:{port}") as found:
                vectors = {}
                until(lambda: not overview(found).status.short)
                for saved in found.export(sorted(found.groups())):
                    vectors[saved.bucket] = saved
                found.remove(run)
                assert not overview(found).status.runs
        finally:
            host.close()
    numbers = [
        torch.frombuffer(bytearray(cast(bytes, buffer)), dtype=torch.float32)
        for saved in vectors.values()
        for (name, _), buffer in sorted(saved.numbers.items())
        if name == "x"
    ]
    assert sum(each.numel() for each in numbers) == 4 * PATTERNS
    assert checkpoint is not None


@pytest.mark.soak
def test_disks_outlive_the_state_of_the_controllers_and_go_on_when_that_is_back(
    opened: Opener, cluster: Cluster, tmp_path: Path, fork_server: ForkServer, token: Token
) -> None:
    backup, folder = tmp_path / "backup", tmp_path / "restored"
    back_up(opened, cluster, backup)
    with free_ports(1) as (port,):
        settings = settings_of(folder, port, servers=2, name="r")
        restore_backup(backup, folder, settings.at, settings.name, None)

        def lives(kind: str, count: int) -> list[str]:
            host = Host(settings, token, fork_server)
            try:
                until(lambda: len(host.told(kind)) >= count)
                until(lambda: all((each / "cluster").is_file() for each in disks(host).iterdir()))
                return [kind for kind, _, _ in host.events]
            finally:
                host.close()

        assert "unknown_server" not in lives("recovered", 4)
        for each in folder.glob(f"{METADATA_FILE}*"):
            each.unlink()
        told = lives("recovered", 4)
        assert "metadata" in told and "unknown_server" not in told, "it is made again from the disks"
        for each in (folder / DISKS_FOLDER).glob("*/runs/*"):  # without these that cannot be done
            each.unlink()
        aside = tmp_path / "state"
        aside.mkdir()
        for each in folder.glob(f"{METADATA_FILE}*"):  # with what SQLite has beside it
            each.rename(aside / each.name)
        assert not {"recovered", "created"} & {*lives("unknown_server", 1)}
        for each in folder.glob(f"{METADATA_FILE}*"):
            each.unlink()
        for each in aside.iterdir():
            each.rename(folder / each.name)
        assert "unknown_server" not in lives("recovered", 4)


@pytest.mark.soak
def test_a_host_that_is_asked_to_end_has_others_take_over_first(
    opened: Opener, tmp_path: Path, fork_server: ForkServer, token: Token
) -> None:
    with (
        standing(tmp_path, fork_server, token, hosts=2, servers=2) as (hosts, place),
        opened(**at(place)) as replicas,
    ):
        replicas.proceed(0.5)
        hosts[1].drain()
        until(lambda: hosts[1].drained is not None)
        assert hosts[1].drained == DrainProgress(0)
        hosts[1].close()
        check_tallies(replicas)
    assert not any("recovered" in kind for kind, _, _ in hosts[0].events)


def test_a_cluster_that_is_not_there_is_told(token: Token) -> None:
    with (
        free_ports(1) as (port,),
        AdminClient([f"127.0.0.1:{port}"], token, wait_seconds=1.0) as operator,
        pytest.raises(MachineError, match=r"answered for 1 s: at 127\.0\.0\.1:.* no process listens"),
    ):
        operator.status()


def test_what_was_restored_is_given_up_by_removing_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [("r-0.restored", "ended"), ("q-0.restored", "ended"), ("q-0.1", "living"), ("p-0", "gone")]
    servers = tuple(SimpleNamespace(name=name, state=state) for name, state in seen)
    monkeypatch.setattr(AdminClient, "status", lambda self: SimpleNamespace(servers=servers))
    operator = AdminClient.__new__(AdminClient)
    for name in ("r-0", "r-0.restored", "q-0.restored"):
        with pytest.raises(
            UserError, match=r"is not a server but .*restore again .*`cotswold cluster remove RUN`"
        ):
            operator.declare_lost(name)
    for name in ("q-0.1", "q-0"):
        with pytest.raises(UserError, match=r"q-0.1 is available; only a silent server can be declared lost"):
            operator.declare_lost(name)
    with pytest.raises(UserError, match=r"p-0 is silent: .*`cotswold cluster drain p-0 --lost`"):
        operator.undrain("p-0")
    with pytest.raises(UserError, match=r"r-0\.restored has already exited"):
        operator.undrain("r-0")
    monkeypatch.setattr(AdminClient, "_request", lambda self, *_: None)
    assert operator.declare_lost("p-0") == "p-0"


def test_a_bucket_and_a_run_that_are_not_are_refused(cluster: Cluster) -> None:
    host, _, operator = cluster
    with pytest.raises(UserError, match="the cluster has no run"):
        explained(operator, "17")
    with pytest.raises(UserError, match="does not select one run"):
        run_meant(operator, "c83a")
    os.kill(host.processes[sorted(host.processes)[-1]], signal.SIGSTOP)
    until(lambda: any(each.state == "gone" for each in overview(operator).status.servers))
    os.kill(host.processes[sorted(host.processes)[-1]], signal.SIGCONT)

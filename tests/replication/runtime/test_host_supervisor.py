"""The supervisor of a host, with idle processes."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.ports import free_ports
from tests.processes.test_process_group import Machines
from tests.support.replication.standalone_cluster import settings_of

from cotswold.errors import MachineError, UserError
from cotswold.files import replace_file
from cotswold.host import Token
from cotswold.replication.client.standalone_cluster import controllers_at
from cotswold.replication.metadata import SqliteStore
from cotswold.replication.runtime import host_supervisor as module
from cotswold.replication.runtime.drain_progress import DrainProgress
from cotswold.replication.runtime.host_settings import HostSettings
from cotswold.replication.runtime.host_supervisor import HostSupervisor
from cotswold.transport.address import Address
from cotswold.wire import DrainStatus, RunDescription

Events = list[tuple[str, str, str]]


def told(events: Events, kind: str) -> list[str]:
    return [sentence for each, _, sentence in events if each == kind]


def step(station: HostSupervisor, is_so: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it does not come to that"
        station.step(0.02)


class Disk:
    """The place of written names, which is full at times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        monkeypatch.setattr("cotswold.replication.runtime.server_names.replace_file", self.write)

    def write(self, path: Path, content: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(path, content)


def test_a_server_that_ends_while_the_disk_is_full_is_started_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, machines, events = Disk(monkeypatch), Machines(here=2), Events()
    settings = settings_of(tmp_path / "a", 1, servers=1)
    with HostSupervisor(settings, Token.new(), lambda *event: events.append(event), machines) as station:
        server = next(each for each in machines.started if each.name == "server-a-0")
        station._backoffs["server-a-0"].started_at -= 100.0  # it has lived for long
        disk.is_full = True
        server.exit = -9
        os.write(server._write, b"x")
        step(station, lambda: told(events, "failed"))
        for _ in range(10):
            station.step(0.02)
        assert 2 <= len(told(events, "failed")) <= 5, "later and later"
        assert "No space left" in told(events, "failed")[0]
        disk.is_full = False
        step(station, lambda: machines.started[-1].name == "server-a-0.1")


def test_a_server_that_has_ended_is_not_kept_among_those_that_serve(tmp_path: Path) -> None:
    machines = Machines(here=2)
    with HostSupervisor(
        settings_of(tmp_path / "a", 1, servers=1), Token.new(), processes=machines
    ) as station:
        station._serving.add("server-a-0")
        server = next(each for each in machines.started if each.name == "server-a-0")
        server.exit = -9
        os.write(server._write, b"x")
        step(station, lambda: machines.started[-1].name == "server-a-0.1")
        assert "server-a-0" not in station._serving


@pytest.mark.parametrize(
    ("answers", "drained"),
    [
        ([("1 has 2 copies; 0001 is copied to server-b-0", True)] * 9, DrainProgress(0)),
        ([(f"it waits for reason {number}", False) for number in range(9)], DrainProgress(0)),
        ([("no other server has room", False)] * 9, DrainProgress(2)),
        ([], DrainProgress(0, ("server-a-0",))),
    ],
)
def test_a_drain_goes_on_while_something_moves_and_tells_what_is_left_or_that_nobody_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[tuple[str, bool]], drained: DrainProgress
) -> None:
    heard = [DrainStatus("server-a-0", 2, *each) for each in answers] + [DrainStatus("server-a-0", 0, "")]
    now = [0.0]

    def hear(self: HostSupervisor, seconds: float) -> object:
        now[0] += 1.0
        return heard.pop(0) if answers and heard else None

    settings = settings_of(tmp_path / "a", 1, servers=1)
    with (
        HostSupervisor(settings, Token.new(), processes=Machines(here=2)) as station,
        monkeypatch.context() as patch,
    ):
        patch.setattr(HostSupervisor, "_receive_event", hear)
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        assert station.drain(25.0) == drained


def test_a_server_that_an_operator_drained_is_ended_and_started_again_once_it_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines, events, finished = Machines(here=2), Events(), list[str]()
    settings = settings_of(tmp_path / "a", 1, servers=2)

    def started() -> list[str]:
        return [each.name for each in machines.started if "server" in each.name]

    def leader_says(station: HostSupervisor, *drained: str) -> None:
        station._on_leader_reply(RunDescription("", "", 0, drained))
        station._start_due(time.monotonic() + 60)

    with HostSupervisor(settings, Token.new(), lambda *event: events.append(event), machines) as station:
        monkeypatch.setattr(station._messenger, "send", lambda name, message: finished.append(name))
        leader_says(station, "server-a-1", "server-a-7")
        leader_says(station, "server-a-1")
        assert finished == ["server-a-1"] * 2 and len(told(events, "drained")) == 1
        server = next(each for each in machines.started if each.name == "server-a-1")
        leader_says(station)
        assert started() == ["server-a-0", "server-a-1"], "one process of a disk at a time"
        leader_says(station, "server-a-1")
        server.exit = 0
        station._on_descriptor_ready(server.fileno())
        leader_says(station, "server-a-1")
    with HostSupervisor(settings, Token.new(), processes=machines) as station:
        assert started()[2:] == ["server-a-0.1"], "nor after a restart of the host"
        leader_says(station)
        assert started()[2:] == ["server-a-0.1", "server-a-1.1"]


def test_a_folder_with_disks_of_another_host_is_refused_by_their_names(tmp_path: Path) -> None:
    settings, disks = settings_of(tmp_path / "a", 1, servers=1), tmp_path / "a" / "servers"
    for own in ("server-a-0", "server-a-0-damaged-17"):
        (disks / own).mkdir(parents=True)
    machines = Machines(here=2)
    HostSupervisor(settings, Token.new(), processes=machines).close()
    (disks / "server-127-0-0-1-0").mkdir()
    with pytest.raises(UserError, match=r"has server-127-0-0-1-0, which is the disk of no server-a-NUMBER"):
        HostSupervisor(settings, Token.new(), processes=machines)


def test_a_host_whose_controller_has_no_port_begins_nothing(tmp_path: Path) -> None:
    """Its servers would be confused with those of the existing cluster."""
    machines = Machines(here=2)
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        said = rf"port {port} .* is taken, .*cluster add --controllers .*:{port}`"
        with pytest.raises(UserError, match=said):
            HostSupervisor(settings_of(tmp_path / "a", port), Token.new(), processes=machines)
    HostSupervisor(settings_of(tmp_path / "a", port), Token.new(), processes=machines).close()


def test_processes_that_do_not_serve_yet_are_not_waited_for_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_END_SECONDS", 60.0)
    station = HostSupervisor(settings_of(tmp_path / "a", 1), Token.new(), processes=Machines(here=2))
    assert len(station.processes) == 4
    began = time.monotonic()
    station.close()
    assert time.monotonic() - began < 10.0


def test_what_a_server_says_of_its_disk_is_told_with_the_servers_name() -> None:
    station, events = HostSupervisor.__new__(HostSupervisor), list[tuple[str, str, str]]()
    station._on_event = lambda *event: events.append(event)
    station._forward_event("disk", "server-a-0", "unsaved changes are 9 s old")
    station._forward_event("joined", "server-a-0", "server-a-0 has joined, on a")
    assert [sentence for _, _, sentence in events] == [
        "server-a-0: unsaved changes are 9 s old",
        "server-a-0 has joined, on a",
    ]


@pytest.mark.parametrize("at", ["::1", "[::1]"])
def test_a_host_of_a_cluster_may_have_an_ipv6_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    settings = HostSettings(at, ("[::1]:7400",), 1, tmp_path / "a")
    machines = Machines(here=2)
    monkeypatch.setattr(module, "is_port_taken", lambda host, port: False)
    assert settings.controller == ("::1", 7400)
    with HostSupervisor(settings, Token.new(), processes=machines) as station:
        assert sorted(station.processes) == sorted(each.name for each in machines.started)
        assert "server---1-0" in station.processes
        assert Address.parsed(station._outer_endpoint.address).tcp_host == "::1"


def test_a_controller_whose_name_leads_to_ipv6_alone_is_called_by_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::7", 0, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    ((name, address),) = controllers_at(["six:7401"]).items()
    assert name == "controller-six-7401" and Address.parsed(address).tcp == "tcp://[2001:db8::7]:7401"


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_a_host_whose_controller_lost_its_state_ends_and_begins_no_other_cluster(tmp_path: Path) -> None:
    machines = Machines(here=2)
    with free_ports(1) as (port,):
        settings = settings_of(tmp_path / "a", port, servers=1)
        with HostSupervisor(settings, Token.new(), processes=machines) as station:
            (controller,) = (each for each in machines.started if "controller" in each.name)
            station._serving.add(controller.name)
            controller.exit = 1
            with pytest.raises(
                MachineError, match=r"state\.sqlite was removed or damaged .* start this host again"
            ):
                station._on_descriptor_ready(controller.fileno())
            station._serving.clear()


def test_a_controller_that_ends_with_its_state_whole_is_started_again(tmp_path: Path) -> None:
    machines, events = Machines(here=2), Events()
    with free_ports(1) as (port,):
        settings = settings_of(tmp_path / "a", port, servers=1)
        with HostSupervisor(settings, Token.new(), lambda *event: events.append(event), machines) as station:
            (controller,) = (each for each in machines.started if "controller" in each.name)
            station._serving.add(controller.name)
            SqliteStore(tmp_path / "a" / "state.sqlite").close()
            controller.exit = 1
            station._on_descriptor_ready(controller.fileno())
            assert len(told(events, "exited")) == 1
            station._serving.clear()

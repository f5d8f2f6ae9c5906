"""The supervisor of a host, with processes that do nothing."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.standing import settings_of
from tests.cluster.test_staff import Machines

from cotswold.cluster.station import Station
from cotswold.files import replace_file
from cotswold.host import Token

Events = list[tuple[str, str, str]]


def told(events: Events, kind: str) -> list[str]:
    return [sentence for each, _, sentence in events if each == kind]


def step(station: Station, is_so: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it does not come to that"
        station.step(0.02)


class Disk:
    """Where names are written, which is full at times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        monkeypatch.setattr("cotswold.cluster.naming.replace_file", self.write)

    def write(self, path: Path, content: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(path, content)


def test_a_server_that_ends_while_the_disk_is_full_is_started_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, machines, events = Disk(monkeypatch), Machines(here=2), Events()
    settings = settings_of(tmp_path / "a", 1, servers=1)
    with Station(settings, Token.new(), lambda *event: events.append(event), machines) as station:
        server = next(each for each in machines.started if each.name == "server-a-0")
        station._lives["server-a-0"].began -= 100.0  # it has lived for long
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

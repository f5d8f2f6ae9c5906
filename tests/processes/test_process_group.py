"""Workers start on machines by their cores, and restart a limited number of times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

import pytest

from cotswold.errors import MachineError
from cotswold.host import Call, Process
from cotswold.host.processes import LOST
from cotswold.processes.process_group import ProcessGroup
from cotswold.transport import Endpoint


class Pretended:
    """A process that ends on request."""

    pid = 1

    def __init__(self, call: Call, machine: str) -> None:
        self.name, self.machine = call.name, machine
        self._read, self._write = os.pipe()
        self.exit: int | None = None

    def fileno(self) -> int:
        return self._read

    def code(self) -> int | None:
        return self.exit

    def why(self) -> str:
        return f"ended with {self.exit}"

    def send(self, number: int) -> None:
        self.exit = -number

    def end(self) -> None:
        for each in (self._read, self._write):
            os.close(each)


class Machines:
    """Starts idle processes on machines that a test changes."""

    def __init__(self, **cores: int) -> None:
        self.cores, self.started, self.broken = cores, list[Pretended](), False

    def machines(self) -> Mapping[str, int]:
        return self.cores

    def start(self, call: Call, machine: str | None = None) -> Process:
        if self.broken:
            raise MachineError(f"{call.name} cannot be started")
        self.started.append(Pretended(call, machine or next(iter(self.cores))))
        return cast(Process, self.started[-1])

    def close(self) -> None:
        pass


class Deaf:
    """An endpoint that watches nothing."""

    def watch(self, descriptor: int) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...


def staff_of(machines: Machines, *, restarts: bool = True) -> ProcessGroup:
    return ProcessGroup(
        machines, cast(Endpoint, Deaf()), lambda name: Call(name, "os:getpid"), restarts=restarts
    )


def end(process_group: ProcessGroup, process: Pretended, code: int, now: float) -> None:
    process.exit = code
    assert process_group.reap(process.fileno(), now) is not None


def test_workers_are_spread_by_cores() -> None:
    machines = Machines(large=4, small=2)
    staff_of(machines).spawn(6)
    places = [each.machine for each in machines.started]
    assert (places.count("large"), places.count("small")) == (4, 2)


def test_a_worker_that_had_joined_is_started_again_at_once() -> None:
    machines = Machines(here=2)
    process_group = staff_of(machines)
    process_group.spawn(1)
    for number in range(10):
        process_group.mark_ready(machines.started[-1].name)
        end(process_group, machines.started[-1], -9, now=float(number))
        process_group.tick(float(number))
        assert len(machines.started) == number + 2
    assert len({each.name for each in machines.started}) == 11


def test_starting_in_vain_comes_to_an_end() -> None:
    machines = Machines(here=2)
    process_group = staff_of(machines)
    process_group.spawn(1)
    for now in range(100):
        if machines.started[-1].exit is None:
            end(process_group, machines.started[-1], 1, float(now))
        process_group.tick(float(now))
    assert len(machines.started) == 4
    assert process_group.cannot_recover and "ended with 1" in process_group.last_exit_reason


def test_a_worker_that_cannot_be_started_now_is_started_later() -> None:
    machines = Machines(here=2)
    process_group = staff_of(machines)
    process_group.spawn(1)
    process_group.mark_ready(machines.started[0].name)
    machines.broken = True
    end(process_group, machines.started[0], -9, 0.0)
    process_group.tick(0.0)
    assert "cannot be started" in process_group.last_exit_reason and not process_group.cannot_recover
    machines.broken = False
    process_group.tick(5.0)
    assert len(machines.started) == 2


def test_who_was_dismissed_is_not_started_again() -> None:
    machines = Machines(here=2)
    process_group = staff_of(machines)
    process_group.spawn(2)
    end(process_group, machines.started[0], 0, 0.0)
    process_group.tick(50.0)
    assert len(machines.started) == 2


def test_a_machine_that_joins_gets_workers() -> None:
    machines = Machines(here=1)
    process_group = staff_of(machines)
    process_group.spawn(1)
    process_group.tick(0.0)
    machines.cores = {"here": 1, "there": 3}
    process_group.tick(10.0)
    process_group.tick(20.0)
    assert [each.machine for each in machines.started] == ["here", "there", "there", "there"]


@pytest.mark.parametrize(("hired", "elsewhere"), [(3, 1), (5, 0)])
def test_workers_of_a_machine_that_is_lost_are_started_where_there_is_room(
    hired: int, elsewhere: int
) -> None:
    machines = Machines(here=3, there=2)
    process_group = staff_of(machines)
    process_group.spawn(hired)
    machines.cores = {"here": 3}
    for each in [each for each in machines.started if each.machine == "there"]:
        process_group.mark_ready(each.name)
        end(process_group, each, -9, 1.0)
    process_group.tick(10.0)
    assert [each.machine for each in machines.started[hired:]] == ["here"] * elsewhere
    machines.cores = {"here": 3, "there": 2}
    process_group.tick(20.0)
    assert [each.machine for each in machines.started[hired + elsewhere :]] == ["there"] * 2


def test_another_worker_is_started_when_the_last_was_dismissed_with_its_machine() -> None:
    machines = Machines(there=1)
    process_group = staff_of(machines)
    process_group.spawn(1)
    machines.cores = {"here": 1}
    end(process_group, machines.started[0], 0, 1.0)
    assert not process_group.cannot_recover
    process_group.tick(2.0)
    assert [each.machine for each in machines.started] == ["there", "here"]


def test_servers_stand_on_the_coordinators_machine_unless_they_are_spread() -> None:
    machines = Machines(own=1, other=8)
    staff_of(machines).start(Call("server-0", "os:getpid"))
    assert machines.started[0].machine == "own"


def test_whoever_is_started_again_takes_the_place_that_is_free() -> None:
    machines = Machines(one=4)
    process_group = staff_of(machines)
    process_group.spawn(3)
    first, second, _ = machines.started
    assert [process_group.slot_of(f"worker-{number}") for number in (1, 2, 3)] == [0, 1, 2]
    for now, gone in ((0.0, second), (10.0, first)):
        gone.exit = 1
        process_group.reap(gone.fileno(), now)
        process_group.tick(now + 9.0)
    assert sorted((name, process_group.slot_of(name)) for name in process_group.workers) == [
        ("worker-3", 2),
        ("worker-4", 1),
        ("worker-5", 0),
    ]
    process_group.close()


def test_a_place_is_free_again_where_its_worker_cannot_be_started() -> None:
    machines = Machines(one=4)
    process_group = staff_of(machines)
    machines.broken = True
    with pytest.raises(MachineError):
        process_group.spawn(1)
    machines.broken = False
    process_group.spawn(1)
    assert [process_group.slot_of(name) for name in process_group.workers] == [0]
    process_group.close()


def test_a_process_that_was_lost_is_replaced_and_not_taken_for_dead() -> None:
    machines = Machines(one=2)
    process_group = staff_of(machines)
    process_group.spawn(2)
    for process, code in zip(tuple(machines.started), (LOST, -9), strict=True):
        process_group.mark_ready(process.name)
        end(process_group, process, code, 1.0)
    process_group.tick(1.0)
    assert [process_group.is_lost(f"worker-{number}") for number in (1, 2)] == [True, False]
    assert process_group.workers == ("worker-3", "worker-4")


def test_a_process_that_starts_again_under_its_name_is_not_the_one_that_was_lost() -> None:
    machines = Machines(one=2)
    process_group = staff_of(machines)
    for code in (LOST, -9):
        process_group.start(Call("controller-0", "module:function", {}, {}, None))
        end(process_group, machines.started[-1], code, 1.0)
        assert process_group.is_lost("controller-0") is (code == LOST)

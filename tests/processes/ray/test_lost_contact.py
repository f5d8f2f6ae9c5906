"""A process on one of Ray's machines whose agent is unreachable: its end is unknown."""

from __future__ import annotations

import select
from concurrent.futures import Future
from typing import Any, cast

import pytest

from cotswold.host.processes import LOST, exit_text
from cotswold.processes.ray.machines import RayMachine
from cotswold.processes.ray.processes import RayProcess


class Remote:
    """A method of an agent: every call returns a future that a test completes."""

    def __init__(self) -> None:
        self.calls: list[Future[tuple[int, str]]] = []

    def remote(self, *_: object) -> Remote:
        self.calls.append(Future())
        return self

    def future(self) -> Future[tuple[int, str]]:
        return self.calls[-1]


class Agent:
    def __init__(self) -> None:
        self.wait_exit, self.end, self.send = Remote(), Remote(), Remote()


class ActorUnavailableError(Exception):
    """An error with Ray's name."""


class ActorDiedError(Exception):
    """An error with Ray's name, also raised for an unreachable agent on a live machine."""


def started() -> tuple[RayProcess, Agent, RayMachine]:
    agent = Agent()
    machine = RayMachine("far", agent, None, 2, is_ready=True)
    return RayProcess("server-0", machine, 7, 0), agent, machine


@pytest.mark.parametrize("errors", [[ActorDiedError("no answer")], [ActorUnavailableError("no answer")] * 2])
def test_lost_contact_is_no_death(errors: list[Exception]) -> None:
    process, agent, machine = started()
    for error in errors:
        assert process.code() is None
        agent.wait_exit.calls[-1].set_exception(error)
    assert select.select([process], [], [], 0)[0], "whoever waits for it hears of it"
    assert (process.code(), machine.is_lost) == (LOST, True)
    assert process.why() == "was lost with its machine far (no answer)"
    process.end()


def test_an_end_that_the_agent_saw_is_an_end() -> None:
    process, agent, machine = started()
    agent.wait_exit.calls[-1].set_result((-9, "was killed by SIGKILL"))
    assert (process.code(), process.why(), machine.is_lost) == (-9, "was killed by SIGKILL", False)
    process.end()


def test_a_killed_process_whose_agent_says_nothing_may_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotswold.processes.ray.processes.END_SECONDS", 0.0)
    process, _, _ = started()
    process.end()
    assert process.code() == LOST
    assert process.why() == "was sent SIGKILL, and its machine far has not reported its end"
    assert exit_text(cast(Any, process.code())) == "was lost, and may still run"

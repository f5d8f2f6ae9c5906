"""An evaluator in a real process: evaluates given or pulled parameters, and restarts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.support.replicas.opened_replicas import Opener
from tests.support.replicas.opened_replicas import opened as opened

from cotswold.errors import MachineError
from cotswold.replicas.evaluator import EvaluatorTask
from cotswold.replicas.replicas import Replicas
from cotswold.wire.lifecycle import EvaluateReply


def task(seconds: float = 0.0) -> EvaluatorTask:
    return EvaluatorTask("tests.support.replicas.works:evaluation", {"seconds": seconds})


def judged(replicas: Replicas) -> EvaluateReply:
    assert replicas.evaluator is not None
    found = replicas.evaluator.wait()
    assert found is not None and not replicas.evaluator.is_busy
    return found


def pid_of(replicas: Replicas) -> int:
    assert replicas.evaluator is not None
    return replicas._coordinator.process_group.pid_of(replicas.evaluator._name)


def test_the_evaluated_parameters_are_returned_while_replicas_continue(opened: Opener) -> None:
    with opened(arguments={"seconds": 0.002}, servers=2, epochs=8, evaluator=task(0.2)) as replicas:
        evaluator = replicas.evaluator
        assert evaluator is not None
        evaluator.begin(0, torch.full((replicas.size,), 0.5))
        assert evaluator.status().activity in ("starting", "evaluating")
        assert judged(replicas).means == (("loss", 0.5 * replicas.size),)
        for number in (1, 2):
            before = replicas.ledger.total.counted
            evaluator.begin(number)
            status = replicas.status().evaluator
            assert status is not None and (status.activity, status.evaluated_samples) == (
                "evaluating",
                number,
            )
            assert status.pid == pid_of(replicas) and status.activity_seconds < 60
            found = judged(replicas)
            assert evaluator.status().activity == "idle"
            assert found.number == number
            parameters = evaluator.parameters()
            assert parameters is not None
            assert dict(found.means)["loss"] == float(parameters.double().sum()) != 0
            assert replicas.is_over or replicas.ledger.total.counted > before, "nobody waited for it"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_evaluator_that_ends_or_says_nothing_is_asked_anew(opened: Opener, number: int) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    slow = {"seconds": 0.002}
    with opened(arguments=slow, events=events, epochs=50, silent=2.0, evaluator=task(0.3)) as replicas:
        evaluator = replicas.evaluator
        assert evaluator is not None
        evaluator.begin(1)
        judged(replicas)
        before = pid_of(replicas)
        evaluator.begin(2)
        os.kill(before, number)
        assert judged(replicas).number == 2
        assert pid_of(replicas) != before
    (why,) = [more["reason"] for kind, more in events if kind == "exited" and more["name"] == "evaluator-1"]
    said = "was ended: it had sent nothing for 2 s" if number == signal.SIGSTOP else "was killed by SIGKILL"
    assert why == said


@pytest.mark.soak
def test_an_evaluator_that_hangs_is_started_again_and_asked_anew(opened: Opener, tmp_path: Path) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    hanging = EvaluatorTask("tests.support.replicas.works:evaluation", {"marker": str(tmp_path / "hung")})
    with opened(
        arguments={"seconds": 0.002}, events=events, epochs=2000, silent=2.0, evaluator=hanging
    ) as replicas:
        evaluator = replicas.evaluator
        assert evaluator is not None
        evaluator.begin(1)
        judged(replicas)
        evaluator.begin(2)
        assert judged(replicas).number == 2
    (why,) = [
        str(more["reason"]) for kind, more in events if kind == "exited" and more["name"] == "evaluator-1"
    ]
    assert "evaluator-1 hangs" in why


def test_an_evaluator_is_not_blamed_for_time_in_which_nobody_listened(opened: Opener) -> None:
    with opened(arguments={"seconds": 0.002}, epochs=50, silent=1.0, evaluator=task()) as replicas:
        evaluator = replicas.evaluator
        assert evaluator is not None
        evaluator.begin(1)
        judged(replicas)
        before = pid_of(replicas)
        time.sleep(2.0)  # what is tested
        assert evaluator.take_result() is None
        assert pid_of(replicas) == before


def test_an_evaluator_that_fails_is_an_error_with_its_message(opened: Opener) -> None:
    bad = EvaluatorTask("tests.support.replicas.works:evaluation", {"minutes": 1})
    with opened(arguments={"seconds": 0.002}, epochs=50, evaluator=bad) as replicas:
        assert replicas.evaluator is not None
        replicas.evaluator.begin(1)
        with pytest.raises(MachineError, match=r"evaluator-2 .*minutes.*nothing can be evaluated"):
            replicas.evaluator.wait()

"""What processes of the tests of gangs do: each leads a gang, and asserts what it can see from there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from cotswold.errors import UserError
from cotswold.host import inherited
from cotswold.launch import follow, lead
from cotswold.training.gang import inherited_gang
from cotswold.training.works import INHERITED, ModuleWork


def compare(grid: str, out: str, in_flight: int) -> None:
    """Sums of a gang, and those of one process, at two points; each leaves a file in ``out``."""
    whole = inherited(INHERITED)
    assert isinstance(whole, ModuleWork)
    torch.manual_seed(5)
    points = [whole.parameters.clone(), torch.randn_like(whole.parameters) * 0.1]
    with inherited_gang(grid, 20.0, in_flight) as work:
        for number, point in enumerate(points):
            work.parameters.copy_(point)
            mine, theirs = torch.ones_like(point), torch.ones_like(point)
            found = work.add(range(3, 40), mine)
            wanted = whole.add(range(3, 40), theirs)
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
            assert abs(found.value - wanted.value) <= 1e-10 * abs(wanted.value)
            assert (found.samples, found.details) == (wanted.samples, wanted.details)
            assert abs(work.add([1], None).value - whole.add([1], None).value) < 1e-10
            assert work.held == whole.held > 0
            judged = work.judge(0, work.held), whole.judge(0, whole.held)
            assert abs(judged[0].value - judged[1].value) <= 1e-10 * abs(judged[1].value)
            assert judged[0].details == judged[1].details
            Path(out, str(number)).touch()
        assert work.add([], None).samples == 0
        assert work.flops == whole.flops


def lead_one(what: str, out: str, timeout_seconds: float = 20.0) -> None:
    """Lead a rank that does what is said, and work until that ends this process."""
    with lead("tests.training.gangs:rank", {"what": what}, 2, timeout_seconds=timeout_seconds) as led:
        Path(out).write_text(str(led.processes[0].pid))
        if what == "end":
            return
        if what == "stop":
            led.processes[0].send(signal.SIGSTOP)
        if what == "leader fails":
            raise UserError("the leader has enough")
        time.sleep(60)


def rank(what: str, place: Mapping[str, object]) -> None:
    """The life of the other rank."""
    with follow(place):
        if what == "end":
            return
        if what == "fail":
            raise UserError("the rank has enough")
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def network() -> nn.Module:
    """Layers of every kind that recipes have, with parts that are unequal, or none, over three ranks."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(3 * 4 * 3, 7),
        nn.Tanh(),
        nn.Linear(7, 2),
    ).double()

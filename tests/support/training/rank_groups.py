"""Processes of the tests of rank groups: each leads a group, and checks what it can see."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from cotswold.errors import UserError
from cotswold.geometry import Grid
from cotswold.host import inherited
from cotswold.launch import Membership, follow, lead
from cotswold.paramserver.core.replica_session import StepTask
from cotswold.replicas.accumulation import Accumulation, OwnSteps
from cotswold.replicas.vectors import HostVectors
from cotswold.shards.runtime.arithmetic import raw
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.work import PortionSum
from cotswold.training.full_batch.objective import INHERITED_OBJECTIVE, ModuleObjective
from cotswold.training.model_parallel.full_batch_worker import Rank, inherited_worker
from cotswold.training.model_parallel.steps import RankAccumulation, RankWork
from cotswold.wire import PulledNewer

_DECAY, _ROTTEN = 0.01, 3
"""Decay, and the step whose gradient is not finite on one rank only."""


def compare(grid: str, out: str, in_flight: int) -> None:
    """Write the sums of a rank group and of one process, at two points, to files in ``out``."""
    whole = inherited(INHERITED_OBJECTIVE)
    assert isinstance(whole, ModuleObjective)
    torch.manual_seed(5)
    points = [whole.parameters.clone(), torch.randn_like(whole.parameters) * 0.1]
    with inherited_worker(grid, 20.0, in_flight) as work:
        for number, point in enumerate(points):
            work.parameters.copy_(point)
            mine, theirs = torch.ones_like(point), torch.ones_like(point)
            found = work.add(range(3, 40), mine)
            wanted = whole.add(range(3, 40), theirs)
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
            assert abs(found.value - wanted.value) <= 1e-10 * abs(wanted.value)
            assert (found.samples, found.details) == (wanted.samples, wanted.details)
            assert abs(work.add([1], None).value - whole.add([1], None).value) < 1e-10
            assert work.held_out == whole.held_out > 0
            judged = work.validate(0, work.held_out), whole.validate(0, whole.held_out)
            assert abs(judged[0].value - judged[1].value) <= 1e-10 * abs(judged[1].value)
            assert judged[0].details == judged[1].details
            Path(out, str(number)).touch()
        assert work.add([], None).samples == 0
        assert work.flops == whole.flops


def compare_steps(grid: str, own: OwnSteps, out: str) -> None:
    """Write the common steps of ranks, and those of one process, to files in ``out``."""
    whole = inherited(INHERITED_OBJECTIVE)
    given: dict[str, object] = {"grid": grid, "own": own, "out": out}
    size = Grid.parse(grid).size
    with lead(
        "tests.support.training.rank_groups:steps_of_rank", given, size, given={INHERITED_OBJECTIVE: whole}
    ) as led:
        _compare_steps(led.ranks, grid, own, out)


def steps_of_rank(grid: str, own: OwnSteps, out: str, place: Mapping[str, object]) -> None:
    """Run as another rank."""
    with follow(place) as ranks:
        _compare_steps(ranks, grid, own, out)


class _OneProcess:
    """The mean loss of a batch by the whole module."""

    def __init__(self, whole: ModuleObjective, rotten: Tensor) -> None:
        """Use ``rotten`` as the place of a gradient that becomes non-finite on request."""
        self.parameters, self.layout, self.is_rotten = whole.parameters, whole.layout, False
        self.samples, self.flops = whole.samples, (0, 0)
        self._whole, self._rotten = whole, rotten

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        mean = torch.zeros_like(gradient)
        found = self._whole.add(samples, mean)
        gradient.add_(mean, alpha=1 / len(samples)).add_(self.parameters, alpha=_DECAY)
        if self.is_rotten:
            gradient[self._rotten] = torch.nan
        return found


def _compare_steps(ranks: Membership, grid: str, own: OwnSteps, out: str) -> None:
    whole = inherited(INHERITED_OBJECTIVE)
    assert isinstance(whole, ModuleObjective)
    rank = Rank(whole, Grid.parse(grid), ranks)
    index = len(rank.shapes) - 2  # of the last weights, which are cut
    rotten = torch.zeros_like(whole.parameters, dtype=torch.bool)
    list(whole.flat.by_name(rotten).values())[index][rank.every_box[1][index].slices] = True
    one = _OneProcess(whole, rotten)
    shards = split_into_shards(whole.layout, 8, 128, ["a", "b"])
    layout = tuple((slot.name, slot.rows, slot.columns) for slot in whole.layout)
    expected = Accumulation(one, layout, own, 20, HostVectors())
    work = RankWork(rank, _DECAY)
    found = RankAccumulation(work, own, 20)
    expected.lay(shards)
    found.settle(shards)
    gradients = rank.gradients

    def with_rotten() -> list[Tensor]:
        parts = gradients()
        if rank.number == 1:
            parts[index] = torch.full_like(parts[index], torch.nan)
        return parts

    numbers = torch.Generator().manual_seed(7)
    for step in range(8):
        point = (0.1 * torch.randn(len(whole.parameters), generator=numbers, dtype=torch.float64)).numpy()
        newer = shards if step == 0 else shards[step % 3 :: 3]
        opens, closes = step % 2 == 0, step % 2 == 1
        one.is_rotten = step == _ROTTEN
        samples = range(5 * step, 5 * step + 5)
        with patch.object(rank, "gradients", with_rotten if one.is_rotten else gradients):
            for each in (expected, found):
                buffers = tuple(raw(point[shard.start : shard.stop]) for shard in newer)
                places = tuple(shard.number for shard in newer)
                pulled = PulledNewer(1, "", step, places, (step,) * len(places), buffers)
                task = StepTask([pulled], (0, 0), 0.1, opens, closes, (1, step), int(step > 1))
                each.begin(task)
                each.step(samples, 0.1, opens)
        parts = torch.split(work.parameters, [part.numel() for part in rank.parts])
        for part, view, (box, _) in zip(
            parts, whole.flat.by_name(whole.parameters).values(), rank.boxes(rank.number), strict=True
        ):
            torch.testing.assert_close(part.view(box.shape), view[box.slices], rtol=1e-9, atol=1e-12)
        if closes:
            sent, _ = expected.close()
            found.close()
            wanted = {
                number: np.frombuffer(buffer)  # type: ignore[call-overload]  # a buffer
                for each in sent.values()
                for number, buffer in zip(each.shards, each.buffers, strict=True)
            }
            own_shards = [number for number, each in found.parts.items() if each.rank == rank.number]
            assert sorted(found.closed) == own_shards and own_shards
            for number, buffer in found.closed.items():
                np.testing.assert_allclose(np.frombuffer(buffer), wanted[number], rtol=1e-9, atol=1e-12)
    Path(out, str(rank.number)).touch()


def lead_one(what: str, out: str, timeout_seconds: float = 20.0) -> None:
    """Lead a rank that does ``what``, and work until that ends this process."""
    with lead(
        "tests.support.training.rank_groups:rank", {"what": what}, 2, timeout_seconds=timeout_seconds
    ) as led:
        Path(out).write_text(str(led.processes[0].pid))
        if what == "end":
            return
        if what == "stop":
            led.processes[0].send(signal.SIGSTOP)
        if what == "leader fails":
            raise UserError("the leader has enough")
        time.sleep(60)


def rank(what: str, place: Mapping[str, object]) -> None:
    """Run as the other rank."""
    with follow(place):
        if what == "end":
            return
        if what == "fail":
            raise UserError("the rank has enough")
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def network() -> nn.Module:
    """Return layers of every kind in recipes, whose parts over three ranks are unequal or empty."""
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

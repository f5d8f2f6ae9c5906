"""A run that is extended within an epoch, against an uninterrupted one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from tests.support.training.callback_runs import data, net, supervised
from tests.support.training.runs import events
from torch.optim.lr_scheduler import StepLR

from cotswold.callbacks import Callback, CallbackContext
from cotswold.run import RunDirectory, Stop
from cotswold.training import Components, Resume, open_module_job
from cotswold.training.per_epoch import PerEpoch


class Course(Callback):
    """Records the learning rate of each step, the epochs so far, and the ends of epochs."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, float]] = []
        self.ends: list[tuple[int, int]] = []

    def on_batch_start(self, context: CallbackContext) -> None:
        assert context.optimizer is not None
        self.steps.append((context.step, context.epoch, context.optimizer.param_groups[0]["lr"]))

    def on_epoch_end(self, context: CallbackContext) -> None:
        self.ends.append((context.step, context.epoch))


def trained(run: Path, course: Course, epochs: float, accumulate: int, stop_at: int = 0) -> torch.nn.Module:
    module, stop = net(), Stop()

    def watch(event: object) -> None:
        if stop_at and len(course.steps) >= stop_at * accumulate:
            stop.signal = 2

    job = open_module_job(
        module,
        data(),
        loss="cross_entropy",
        directory=run,
        settings=supervised(epochs=epochs, accumulate=accumulate),
        validation=0.25,
        resume=Resume.IF_STARTED,
        components=Components(
            optimizer=partial(torch.optim.SGD, lr=0.1),
            scheduler=PerEpoch(partial(StepLR, step_size=1, gamma=0.5)),
            callbacks=[course],
        ),
    )
    job.train(watch, stop)
    return module


@pytest.mark.parametrize("totals", [(0.5, 3), (0.5, 1.25, 3), (1.5, 1.75, 2.75, 3)])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_run_that_is_extended_within_an_epoch_has_the_epochs_of_an_uninterrupted_one(
    tmp_path: Path, totals: tuple[float, ...], accumulate: int
) -> None:
    whole, parts = Course(), Course()
    module = trained(tmp_path / "whole", whole, 3, accumulate)
    for total in totals:
        found = trained(tmp_path / "parts", parts, total, accumulate)
    assert parts.steps == whole.steps
    assert parts.ends == whole.ends and len(whole.ends) == 3
    assert len({rate for _, _, rate in whole.steps}) == 3
    steps = [
        {event["step"] for event in events(RunDirectory.open(tmp_path / name), "validation")}
        for name in ("whole", "parts")
    ]
    assert steps[0] <= steps[1]
    for name, value in module.state_dict().items():
        assert torch.equal(value, found.state_dict()[name]), name


def test_a_run_that_is_stopped_in_such_an_extension_keeps_its_place_in_the_epoch(tmp_path: Path) -> None:
    whole, parts = Course(), Course()
    module = trained(tmp_path / "whole", whole, 3, 1)
    trained(tmp_path / "parts", parts, 0.5, 1)
    trained(tmp_path / "parts", parts, 3, 1, stop_at=7)
    assert len(parts.steps) < len(whole.steps)
    found = trained(tmp_path / "parts", parts, 3, 1)
    assert (parts.steps, parts.ends) == (whole.steps, whole.ends)
    assert torch.equal(module.state_dict()["0.weight"], found.state_dict()["0.weight"])

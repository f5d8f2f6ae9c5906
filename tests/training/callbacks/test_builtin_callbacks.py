"""The callbacks of Cotswold: what they do, and runs with them that are killed and resumed to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.support.training.callback_runs import (
    EPOCHS,
    STEPS,
    net,
    plain_net,
    supervised,
    tensors,
    train,
)
from tests.support.training.runs import events, finish, last, started
from tests.support.training.small_recipes import supervised as small_recipe
from torch import nn
from torch.optim.lr_scheduler import StepLR

import cotswold
from cotswold.api.run import load_trained
from cotswold.callbacks import (
    Callback,
    CallbackContext,
    EarlyStopping,
    GradientNorms,
    LRMonitor,
    ModelEMA,
)
from cotswold.errors import UserError
from cotswold.recipe.schema import BatchTraining, SupervisedTraining
from cotswold.run import RunDirectory, Stop
from cotswold.training import Components, Resume, network_tensors, trained_layers
from cotswold.training.callbacks.ema import network_name
from cotswold.training.learning_rates import LearningRates, rates_of
from cotswold.training.per_epoch import PerEpoch

ALL: dict[str, Callable[[], list[Callback]]] = {
    "ema": lambda: [ModelEMA(0.8)],
    "early": lambda: [EarlyStopping(patience=9)],
    "all": lambda: [ModelEMA(0.8), EarlyStopping(patience=9), GradientNorms(1), LRMonitor(1)],
}


class At(Callback):
    """Calls a function after a step."""

    def __init__(self, step: int, function: Callable[[CallbackContext], object]) -> None:
        self._step, self._function = step, function

    def on_step_end(self, context: CallbackContext) -> None:
        if context.step == self._step:
            self._function(context)


class Losses(Callback):
    """Replaces no loss: collects those of validations."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_validation_end(self, context: CallbackContext) -> None:
        self.values.append(context.metrics["loss"])


# ---- early stopping


def test_early_stopping_ends_where_patience_of_the_recipe_does(tmp_path: Path) -> None:
    words: dict[str, Any] = {"epochs": 40, "learning_rate": 0.3, "schedule": "constant"}
    assert train(tmp_path / "callback", [EarlyStopping(patience=3)], training=supervised(**words))
    assert train(tmp_path / "recipe", [], training=supervised(**words, patience=3))
    one, other = (RunDirectory.open(tmp_path / name) for name in ("callback", "recipe"))
    step = last(one.checkpoints).step
    assert step == last(other.checkpoints).step < 40 * STEPS
    assert tensors(one) == tensors(other)
    end = events(one, "end")[-1]
    assert end["status"] == "finished"
    assert "EarlyStopping: no better loss in 3 validations in a row" in str(end["reason"])


@pytest.mark.parametrize(("epochs", "patience", "steps"), [(30, 3, 3), (30, 5, 5), (31, 3, 6)])
def test_a_run_that_early_stopping_ended_continues_with_more_patience_or_epochs(
    epochs: int, patience: int, steps: int, tmp_path: Path
) -> None:
    words: dict[str, Any] = {"learning_rate": 1e-9, "schedule": "constant"}
    assert train(
        tmp_path / "run", [EarlyStopping(patience=3, min_delta=1.0)], training=supervised(epochs=30, **words)
    )
    again = supervised(epochs=epochs, **words)
    assert train(
        tmp_path / "run",
        [EarlyStopping(patience=patience, min_delta=1.0)],
        training=again,
        resume=Resume.ALWAYS,
    )
    assert last(RunDirectory.open(tmp_path / "run").checkpoints).step == steps * STEPS


def test_early_stopping_monitors_any_metric_in_both_directions(tmp_path: Path) -> None:
    training = supervised(epochs=30, learning_rate=1e-9)
    stopping = EarlyStopping("accuracy", 2, mode="max", min_delta=0.01)
    assert train(tmp_path / "run", [stopping], training=training)
    assert last(RunDirectory.open(tmp_path / "run").checkpoints).step == 2 * STEPS
    rising = EarlyStopping("accuracy", 1, mode="max")
    for value in (0.1, 0.2, 0.3):
        rising.on_validation_end(_context({"accuracy": value}))
    with pytest.raises(cotswold.callbacks.StopTraining, match=r"the best is 0\.3$"):
        rising.on_validation_end(_context({"accuracy": 0.3}))


def test_early_stopping_without_its_metric_says_so_and_the_run_finishes(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="no metric 'f1'; give monitor one of loss, accuracy"):
        assert train(tmp_path / "unknown", [EarlyStopping("f1")])
    with pytest.warns(RuntimeWarning, match="the run has no validation"):
        assert train(tmp_path / "none", [EarlyStopping()], validation=None)


@pytest.mark.parametrize(
    "words", [{"patience": 0}, {"patience": 2.5}, {"mode": "up"}, {"monitor": 3}, {"min_delta": -1.0}]
)
def test_early_stopping_refuses_other_arguments(words: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="EarlyStopping"):
        EarlyStopping(**words)


# ---- the average of weights


def _average(
    decay: float, warmup: bool, path: Path
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Train, and return the average computed here, and the module's own tensors."""
    module, mean = net(), {}
    mean.update({name: each.detach().clone() for name, each in module.named_parameters()})
    count = 0

    class Follow(Callback):
        def on_step_end(self, context: CallbackContext) -> None:
            nonlocal count
            count += 1
            now = min(decay, (1 + count) / (10 + count)) if warmup else decay
            for name, each in module.named_parameters():
                mean[name] = now * mean[name] + (1 - now) * each.detach()

    assert train(path, [Follow(), ModelEMA(decay, warmup=warmup)], module=module, validation=None)
    return mean, dict(module.state_dict())


@pytest.mark.parametrize("warmup", [True, False])
def test_the_saved_network_is_the_average_with_the_buffers_of_the_module(
    warmup: bool, tmp_path: Path
) -> None:
    mean, own = _average(0.6, warmup, tmp_path / "run")
    loaded = cotswold.Run(tmp_path / "run").load(net()).state_dict()
    for name, value in loaded.items():
        if name in mean:
            torch.testing.assert_close(value, mean[name])
            assert name.endswith("bias") or not torch.equal(value, own[name])
        else:
            assert torch.equal(value, own[name])


def test_a_module_of_the_program_gets_the_trained_weights_of_other_processes(tmp_path: Path) -> None:
    module, filled = net(), net().train()
    assert train(tmp_path / "run", [ModelEMA(0.9)], module=module)
    load_trained(filled, RunDirectory.open(tmp_path / "run"))
    for name, value in module.state_dict().items():
        assert torch.equal(value, filled.state_dict()[name]), name
    assert not filled.training


def test_the_average_is_what_is_validated(tmp_path: Path) -> None:
    module, losses = net(), Losses()
    assert train(tmp_path / "run", [ModelEMA(0.9), losses], module=module)
    assert train(tmp_path / "other", [], module=net())
    run = RunDirectory.open(tmp_path / "run")
    found = cotswold.Run(tmp_path / "run").load(net())
    own = [event["loss"] for event in events(RunDirectory.open(tmp_path / "other"), "validation")]
    assert losses.values[0] == own[0] and losses.values[1:] != own[1:]
    assert losses.values == [event["loss"] for event in events(run, "validation")]
    assert not found.training


def test_training_is_the_same_with_and_without_an_average(tmp_path: Path) -> None:
    with_average, without = net(), net()
    assert train(tmp_path / "run", [ModelEMA(0.9)], module=with_average)
    assert train(tmp_path / "other", [], module=without)
    for name, value in with_average.state_dict().items():
        assert torch.equal(value, without.state_dict()[name]), name


def test_a_run_continues_from_its_own_weights_after_the_average_is_left_out(tmp_path: Path) -> None:
    whole = net()
    assert train(tmp_path / "whole", [], module=whole)
    assert not train(tmp_path / "run", [ModelEMA(0.9), At(6, lambda context: context.stop.request())])
    rest = net()
    assert train(tmp_path / "run", [], module=rest, resume=Resume.ALWAYS)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, rest.state_dict()[name]), name
    assert not [name for name in tensors(tmp_path / "run") if name.startswith("raw.")]


def test_an_average_that_is_new_at_resume_begins_at_the_weights_of_the_checkpoint(tmp_path: Path) -> None:
    assert not train(tmp_path / "run", [At(6, lambda context: context.stop.request())])
    before = last(RunDirectory.open(tmp_path / "run").checkpoints).read("network.0.weight")
    seen: dict[str, torch.Tensor] = {}
    average = ModelEMA(0.99, warmup=False)

    def look(context: CallbackContext) -> None:
        assert context.module is not None
        with average.exchanged():
            seen["average"] = context.module.get_parameter("0.weight").detach().clone()
        seen["own"] = context.module.get_parameter("0.weight").detach().clone()

    assert train(tmp_path / "run", [average, At(7, look)], resume=Resume.ALWAYS)
    torch.testing.assert_close(seen["average"], 0.99 * before + 0.01 * seen["own"])


def test_tied_and_frozen_parameters_are_averaged_once_or_not_at_all(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.one, self.mask = (
                nn.Linear(5, 5),
                nn.Parameter(torch.tensor([-torch.inf]), requires_grad=False),
            )
            self.two, self.out = nn.Linear(5, 5), nn.Linear(5, 2)
            self.two.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.out(self.two(self.one(x).tanh()))
            return found

    module = Tied()
    assert train(tmp_path / "run", [ModelEMA(0.5)], module=module)
    loaded = cotswold.Run(tmp_path / "run").load(Tied())
    kept = loaded.state_dict()
    assert torch.equal(kept["one.weight"], kept["two.weight"])
    assert torch.equal(kept["mask"], torch.tensor([-torch.inf]))


def test_a_second_average_another_strategy_and_other_decays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 ModelEMA callbacks are given"):
        train(tmp_path / "two", [ModelEMA(), ModelEMA()])
    batch = BatchTraining(strategy="batch", max_iterations=2, portion_size=10, threads=1)
    with pytest.raises(UserError, match="the callback ModelEMA reads parameters after each step"):
        train(tmp_path / "batch", [ModelEMA()], training=batch, module=plain_net())
    for decay in (1.0, -0.1, "a", True):
        with pytest.raises(UserError, match="from 0 to below 1"):
            ModelEMA(decay)  # type: ignore[arg-type]  # wrong on purpose


def test_a_run_of_a_recipe_predicts_with_the_average(images: Path, stores: Path, tmp_path: Path) -> None:
    text = small_recipe(images, data="validation = 0.2\n")
    runs = {}
    for name, callbacks in (("run", (ModelEMA(0.99, warmup=False),)), ("other", ())):
        job = replace(started(text, tmp_path / name, stores), components=Components(callbacks=callbacks))
        runs[name] = finish(job)
    network = trained_layers(runs["run"]).network
    checkpoint = last(runs["run"].best)
    for name, value in network_tensors(network).items():
        assert torch.equal(value, checkpoint.read(name))
    raw = [name for name in checkpoint.names if name.startswith("raw.")]
    assert any(not torch.equal(checkpoint.read(each), checkpoint.read(network_name(each))) for each in raw)
    one, other = (last(each.checkpoints) for each in runs.values())
    for name in raw:  # training is the same
        assert torch.equal(one.read(name), other.read(network_name(name)))
    found, expected = (cotswold.predict(each.path, images / "level") for each in runs.values())
    assert len(found) == 30 and not np.array_equal(found.probabilities, expected.probabilities)


# ---- norms and rates


def test_gradient_norms_are_those_of_torch(tmp_path: Path) -> None:
    module = net()
    expected: list[float] = []

    class Measure(Callback):
        def on_step_end(self, context: CallbackContext) -> None:
            grads = [each.grad for each in module.parameters() if each.grad is not None]
            expected.append(float(nn.utils.get_total_norm(grads)))

    assert train(tmp_path / "run", [Measure(), GradientNorms(every=3)], module=module)
    found = events(RunDirectory.open(tmp_path / "run"), "gradient_norms")
    assert [event["step"] for event in found] == [1, *range(3, STEPS * EPOCHS + 1, 3)]
    for event in found:
        step, norm = event["step"], event["norm"]
        assert isinstance(step, int) and norm == pytest.approx(expected[step - 1], rel=1e-5)
        layers = {name: value for name, value in event.items() if name.startswith("layer.")}
        assert set(layers) == {"layer.0", "layer.1", "layer.4"}
        total = sum(float(str(value)) ** 2 for value in layers.values())
        assert total**0.5 == pytest.approx(norm)


def test_learning_rates_are_recorded_by_parameter_group(tmp_path: Path) -> None:
    assert train(
        tmp_path / "run", [LRMonitor(every=4)], training=supervised(learning_rate=0.25, schedule="constant")
    )
    found = events(RunDirectory.open(tmp_path / "run"), "learning_rates")
    assert [event["step"] for event in found] == [1, 4, 8, 12, 16]
    assert {event["group_0"] for event in found} == {0.25}


def grouped(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Return an optimiser of two groups, of which one has a name."""
    first, *others = parameters
    groups: list[dict[str, Any]] = [{"params": [first], "lr": 0.2, "name": "first"}, {"params": others}]
    return torch.optim.SGD(groups, lr=0.1)


def test_groups_of_one_name_keep_their_rates_apart() -> None:
    module = nn.Linear(2, 2)
    groups = [
        {"params": [each], "lr": rate, "name": "a"}
        for each, rate in zip(module.parameters(), (0.1, 0.01), strict=True)
    ]
    optimizer = torch.optim.SGD(groups)
    assert rates_of(optimizer) == {"a_0": 0.1, "a_1": 0.01}
    rates = LearningRates(optimizer, SupervisedTraining(), Components(optimizer=lambda _: optimizer))
    assert rates.before_step(0, 10)["learning_rate"] == rates_of(optimizer)["a_0"]


def test_the_rates_in_use_are_recorded_for_every_group(tmp_path: Path) -> None:
    halves = PerEpoch(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    components = Components(optimizer=grouped, scheduler=halves, callbacks=[LRMonitor(every=STEPS)])
    assert train(tmp_path / "run", (), components=components)
    run = RunDirectory.open(tmp_path / "run")
    found = events(run, "learning_rates")
    assert [event["step"] for event in found] == [1, 4, 8, 12, 16]
    assert [event["first"] for event in found] == pytest.approx([0.2, 0.2, 0.1, 0.05, 0.025])
    assert [event["group_1"] for event in found] == pytest.approx([0.1, 0.1, 0.05, 0.025, 0.0125])
    (start,) = events(run, "start")
    groups = cast(list[dict[str, object]], start["parameter_groups"])
    assert [(each.get("name"), each["lr"]) for each in groups] == [("first", 0.2), (None, 0.1)]
    last_step = events(run, "step")[-1]
    names = ("learning_rate", "learning_rate.first", "learning_rate.group_1")
    assert [last_step[name] for name in names] == pytest.approx([0.025, 0.025, 0.0125])


def test_learning_rates_are_those_of_the_step_itself_before_the_scheduler_takes_one(tmp_path: Path) -> None:
    run = cotswold.train(
        nn.Linear(2, 2),
        (torch.randn(8, 2), torch.arange(8) % 2),
        loss="cross_entropy",
        directory=tmp_path / "run",
        epochs=1,
        batch_size=2,
        learning_rate=0.25,
        scheduler=partial(StepLR, step_size=1, gamma=0.5),
        callbacks=[LRMonitor(every=1)],
    )
    found = events(run.directory, "learning_rates")
    assert [event["group_0"] for event in found] == [0.25, 0.125, 0.0625, 0.03125]
    steps = {event["step"]: event["learning_rate"] for event in events(run.directory, "step")}
    assert steps.items() <= {event["step"]: event["group_0"] for event in found}.items()


@pytest.mark.parametrize("kind", [GradientNorms, LRMonitor])
@pytest.mark.parametrize("every", [0, 1.5, True])
def test_intervals_are_positive_integers(kind: Any, every: Any) -> None:
    with pytest.raises(UserError, match="not an integer of at least 1"):
        kind(every)


# ---- killed runs

KILLED = """
import os, sys
from pathlib import Path
from tests.support.training.callback_runs import supervised, train
from tests.training.callbacks.test_builtin_callbacks import ALL, At, save_now

train(Path(sys.argv[1]), [*ALL[sys.argv[2]](), At(5, save_now), At(9, lambda context: os._exit(9))])
"""


def save_now(context: CallbackContext) -> None:
    """Make the next checkpoint due."""
    from cotswold.run import Recorder

    Recorder.is_save_due = True  # type: ignore[method-assign, assignment]  # in a process of its own


@pytest.mark.parametrize("which", ALL)
def test_a_killed_run_resumes_to_the_bit(which: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "run"), which],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    run = RunDirectory.open(tmp_path / "run")
    assert 5 <= last(run.checkpoints).step < 9
    resumed, whole = net(), net()
    assert train(tmp_path / "run", ALL[which](), module=resumed, resume=Resume.ALWAYS)
    assert train(tmp_path / "whole", ALL[which](), module=whole)
    assert tensors(run) == tensors(tmp_path / "whole")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    for kind in ("validation", "gradient_norms", "learning_rates"):
        one, other = (
            {event["step"]: _figures(event) for event in events(each, kind)}
            for each in (run, RunDirectory.open(tmp_path / "whole"))
        )
        assert one == other


def _figures(event: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in event.items() if name not in ("time", "seconds")}


def _context(metrics: Mapping[str, float]) -> CallbackContext:
    return CallbackContext(
        run=Path(),
        module=None,
        optimizer=None,
        batch=None,
        step=1,
        epoch=0,
        metrics=metrics,
        stop=Stop(),
        event=lambda kind, **fields: None,
    )

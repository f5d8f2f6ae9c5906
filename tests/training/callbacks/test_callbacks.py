"""Callbacks of a run: their hooks, their state, and that none can harm the run."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.training.callback_runs import (
    EPOCHS,
    STEPS,
    data,
    net,
    plain_net,
    supervised,
    tensors,
    train,
)
from tests.support.training.runs import events, last
from torch import nn
from torch.nn import functional

from cotswold.callbacks import Callback, CallbackContext, StopTraining
from cotswold.checkpoint import Checkpoint
from cotswold.errors import UserError
from cotswold.recipe.schema import BatchTraining, DownpourTraining
from cotswold.recipe.schema.strategy import SharedTraining
from cotswold.run import Recorder, RunDirectory, Stop
from cotswold.training import ModuleJob, Resume, open_module_job
from cotswold.training.callbacks.base import HOOKS, Status
from cotswold.training.components import Components
from cotswold.training.trainers.base import Trainer


class Recording(Callback):
    """Records the hooks with the step and the epoch."""

    def __init__(self) -> None:
        self.hooks: list[str] = []
        self.contexts: list[CallbackContext] = []

    def __getattribute__(self, name: str) -> Any:
        if name in HOOKS and name != "on_event":
            return partial(self._add, name)
        return super().__getattribute__(name)

    def _add(self, hook: str, context: CallbackContext) -> None:
        self.hooks.append(hook)
        self.contexts.append(context)

    def of(self, hook: str) -> list[CallbackContext]:
        return [each for name, each in zip(self.hooks, self.contexts, strict=True) if name == hook]


class Stopping(Callback):
    """Raises an error in one hook, once the run has reached a step."""

    def __init__(self, hook: str, error: BaseException, step: int = 0) -> None:
        self._hook, self._error, self._step = hook, error, step
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:
        if name in HOOKS and name == self._hook:
            return self._raise
        return super().__getattribute__(name)

    def _raise(self, given: Any) -> None:
        self.calls += 1
        if isinstance(given, Mapping) or given.step >= self._step:
            raise self._error


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Return a run without callbacks."""
    path = tmp_path_factory.mktemp("untouched") / "run"
    assert train(path, ())
    return RunDirectory.open(path)


def test_hooks_come_in_the_order_of_the_run_and_know_its_state(tmp_path: Path) -> None:
    seen, module = Recording(), net()
    assert train(tmp_path / "run", [seen], module=module)
    one_epoch = ["on_batch_start", "on_step_end"] * STEPS
    expected = ["on_start", "on_checkpoint", "on_validation_end"]
    assert seen.hooks[:3] == expected
    rest = [each for each in seen.hooks[3:] if each != "on_checkpoint"]
    assert rest == [*one_epoch, "on_validation_end", "on_epoch_end"] * EPOCHS + ["on_end"]
    assert [each.step for each in seen.of("on_step_end")] == list(range(1, STEPS * EPOCHS + 1))
    assert [each.epoch for each in seen.of("on_epoch_end")] == [1, 2, 3, 4]
    step, validation, end = (seen.of(each)[-1] for each in ("on_step_end", "on_validation_end", "on_end"))
    assert step.module is module and isinstance(step.optimizer, torch.optim.SGD)
    assert step.batch is not None and step.batch.inputs.shape[1:] == (5,)
    assert {"loss", "accuracy", "learning_rate"} <= set(step.metrics)
    recorded = events(RunDirectory.open(tmp_path / "run"), "validation")[-1]
    assert validation.metrics == {name: recorded[name] for name in ("loss", "accuracy")}
    assert end.status == "finished" and step.status == "running" and end.run == (tmp_path / "run")
    saved = seen.of("on_checkpoint")[-1].checkpoint
    assert saved is not None and saved.is_dir()
    with pytest.raises(TypeError):
        step.metrics["loss"] = 0.0  # type: ignore[index]  # read-only


@pytest.mark.parametrize("hook", HOOKS)
def test_a_callback_that_raises_is_reported_once_and_changes_no_bit(
    hook: str, untouched: RunDirectory, tmp_path: Path
) -> None:
    broken = Stopping(hook, ZeroDivisionError("a slip"))
    with pytest.warns(RuntimeWarning, match="the callback Stopping raised ZeroDivisionError: a slip") as told:
        assert train(tmp_path / "run", [broken])
    run = RunDirectory.open(tmp_path / "run")
    assert broken.calls == 1 == len(told)
    (event,) = events(run, "callback_failed")
    assert (event["callback"], event["error"]) == ("Stopping", "ZeroDivisionError: a slip")
    assert events(run, "end")[-1]["status"] == "finished"
    assert tensors(run) == tensors(untouched)


def test_a_callback_that_raises_cannot_harm_a_run_whose_warnings_are_errors(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(tmp_path / "run", [Stopping("on_step_end", ValueError("x"))])
    assert events(RunDirectory.open(tmp_path / "run"), "end")[-1]["status"] == "finished"


class Drawing(Callback):
    """Draws random numbers in every hook."""

    def __getattribute__(self, name: str) -> Any:
        return self._draw if name in HOOKS else super().__getattribute__(name)

    def _draw(self, given: object) -> None:
        torch.rand(3), np.random.rand(2), random.random()

    def state_dict(self) -> Mapping[str, Any]:
        return {"drawn": torch.rand(3)}


def test_a_callback_that_draws_random_numbers_changes_no_bit(untouched: RunDirectory, tmp_path: Path) -> None:
    assert train(tmp_path / "run", [Drawing()])
    found = tensors(tmp_path / "run")
    assert found.pop("callbacks.Drawing.drawn")
    assert found == tensors(untouched)


def test_a_function_receives_events(tmp_path: Path) -> None:
    heard: list[Mapping[str, object]] = []
    assert train(tmp_path / "run", [heard.append])
    kinds = [each["kind"] for each in heard]
    assert kinds[0] == "start" and kinds[-1] == "end" and "step" in kinds


def test_an_interrupt_in_a_callback_stops_the_run_as_ctrl_c_does(tmp_path: Path) -> None:
    stop = Stop()
    assert not train(tmp_path / "run", [Stopping("on_step_end", KeyboardInterrupt(), 5)], stop=stop)
    assert stop.interrupted
    run = RunDirectory.open(tmp_path / "run")
    assert events(run, "end")[-1]["status"] == "interrupted" and last(run.checkpoints).step == 5


def test_a_stop_that_a_callback_requests_interrupts_the_run(tmp_path: Path) -> None:
    class Requesting(Callback):
        def on_step_end(self, context: CallbackContext) -> None:
            if context.step == 5:
                context.stop.request()

    seen = Recording()
    assert not train(tmp_path / "run", [Requesting(), seen])
    assert seen.of("on_end")[-1].status == "interrupted"
    assert last(RunDirectory.open(tmp_path / "run").checkpoints).step == 5


def test_the_end_of_a_failed_run_is_a_hook(tmp_path: Path) -> None:
    class Bad(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise OSError("no more")

    seen = Recording()
    with pytest.raises(OSError, match="no more"):
        train(tmp_path / "run", [seen], module=Bad(5, 2), validation=None)
    assert seen.of("on_end")[-1].status == "failed"


def test_stop_training_saves_and_finishes_the_run_which_then_is_complete(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, [Stopping("on_step_end", StopTraining("good enough"), 7)])
    end = events(RunDirectory.open(run), "end")[-1]
    assert (end["status"], end["reason"]) == ("finished", "Stopping: good enough")
    assert last(RunDirectory.open(run).checkpoints).step == 7
    before = tensors(run)
    assert train(run, [Stopping("on_step_end", StopTraining(), 7)], resume=Resume.ALWAYS)
    (complete,) = events(RunDirectory.open(run), "already_complete")
    assert "Stopping ended the run (good enough)" in str(complete["reason"])
    assert events(RunDirectory.open(run), "end")[-1]["reason"] == "Stopping: good enough"
    assert tensors(run) == before


@pytest.mark.parametrize(("callbacks", "epochs"), [([Callback()], EPOCHS), (None, EPOCHS + 1)])
def test_a_run_that_a_callback_ended_continues_without_it_or_with_more_epochs(
    callbacks: list[Callback] | None, epochs: int, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(run, [Stopping("on_step_end", StopTraining(), 7)])
    given = callbacks or [Stopping("on_step_end", StopTraining(), 10**6)]
    assert train(run, given, training=supervised(epochs=epochs), resume=Resume.ALWAYS)
    assert last(RunDirectory.open(run).checkpoints).step == STEPS * epochs
    assert events(RunDirectory.open(run), "already_complete") == []


class Counting(Callback):
    """Counts steps, and keeps their mean weight."""

    def __init__(self) -> None:
        self.steps, self.mean = 0, torch.zeros(8, 5)

    def on_step_end(self, context: CallbackContext) -> None:
        assert context.module is not None
        self.steps += 1
        self.mean += context.module[0].weight.detach()  # type: ignore[index]  # a sequence

    def state_dict(self) -> Mapping[str, Any]:
        return {"steps": self.steps, "nested": {"list": [1, 2]}, "mean": self.mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert state["nested"] == {"list": [1, 2]}
        self.steps, self.mean = state["steps"], state["mean"]


def test_the_state_of_callbacks_resumes_to_the_bit(tmp_path: Path) -> None:
    whole, stopped = [Counting(), Counting()], [Counting(), Counting()]
    assert train(tmp_path / "whole", whole)
    stop = Stop()
    assert not train(tmp_path / "run", [*stopped, Stopping("on_step_end", KeyboardInterrupt(), 5)], stop=stop)
    again = [Counting(), Counting()]
    assert train(tmp_path / "run", again, resume=Resume.ALWAYS)
    for one, other in zip(whole, again, strict=True):
        assert one.steps == other.steps == STEPS * EPOCHS and torch.equal(one.mean, other.mean)
    assert tensors(tmp_path / "run") == tensors(tmp_path / "whole")
    assert {"callbacks.Counting.mean", "callbacks.Counting-2.mean"} <= set(tensors(tmp_path / "run"))


def test_a_state_that_json_lacks_is_an_error_of_the_callback(tmp_path: Path) -> None:
    class Odd(Callback):
        def state_dict(self) -> Mapping[str, Any]:
            return {"x": object()}

    with pytest.warns(RuntimeWarning, match="the callback Odd raised TypeError"):
        assert train(tmp_path / "run", [Odd()])


def test_a_callback_that_is_new_at_resume_starts_fresh(tmp_path: Path) -> None:
    assert not train(tmp_path / "run", [Stopping("on_step_end", KeyboardInterrupt(), 5)])
    counting = Counting()
    assert train(tmp_path / "run", [counting], resume=Resume.ALWAYS)
    assert counting.steps == STEPS * EPOCHS - 5


@pytest.mark.parametrize(
    ("given", "said"),
    [([Callback], "Callback is a class"), ([3], "3 is not a callback"), (Callback(), "must be a list")],
)
def test_other_objects_are_refused_before_the_run_exists(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Components(callbacks=given)


def test_a_trainer_that_calls_no_callbacks_refuses_them_but_not_functions(tmp_path: Path) -> None:
    class Bare:
        """A trainer that does not derive from the base class."""

        number, parameters = 0, 1

        def resume(self, checkpoint: Checkpoint) -> None:
            """Have no state."""

        def run(self) -> bool:
            return True

    class BareJob(ModuleJob):
        def build(self, recorder: Recorder, exit_stack: ExitStack, *, fresh: bool) -> Bare:
            return Bare()

    def train_bare(name: str, callbacks: list[Any]) -> None:
        words: dict[str, Any] = {"loss": "cross_entropy", "components": Components(callbacks=callbacks)}
        job = open_module_job(net(), data(), directory=tmp_path / name, **words)
        job = BareJob(**{each.name: getattr(job, each.name) for each in fields(job)})
        assert job.train(lambda event: None, Stop())

    with pytest.raises(UserError, match=r"Bare calls no callbacks; derive it from cotswold\.training"):
        train_bare("callback", [Recording()])
    heard: list[Mapping[str, object]] = []
    train_bare("function", [heard.append])
    assert [event["kind"] for event in heard] == ["start", "end"]


def other_training(strategy: str, **words: Any) -> SharedTraining:
    if strategy == "batch":
        return BatchTraining(
            **{"strategy": "batch", "max_iterations": 6, "portion_size": 10, "threads": 1, **words}
        )
    return DownpourTraining(
        **{"strategy": "downpour", "epochs": 3, "batch_size": 5, "threads": 1, "learning_rate": 0.05, **words}
    )


@pytest.mark.parametrize("strategy", ["batch", "downpour"])
def test_other_strategies_call_the_hooks_in_the_main_process(strategy: str, tmp_path: Path) -> None:
    seen = Recording()
    assert train(tmp_path / "run", [seen], training=other_training(strategy), module=plain_net())
    assert seen.hooks[0] == "on_start" and seen.hooks[-1] == "on_end"
    assert set(seen.hooks) == set(HOOKS) - {"on_event", "on_batch_start"}
    validation = seen.of("on_validation_end")[-1]
    assert validation.module is not None and validation.metrics["loss"] > 0
    x, y = data()[:]
    with torch.no_grad():
        trained, fresh = (
            float(functional.cross_entropy(each(x), y)) for each in (validation.module, plain_net())
        )
    assert trained < fresh
    if strategy == "batch":
        assert [each.step for each in seen.of("on_step_end")] == [1, 2, 3, 4, 5, 6]
    else:
        assert [each.epoch for each in seen.of("on_epoch_end")] == [1, 2, 3]


class Requesting(Callback):
    """Requests a stop after an epoch."""

    def on_epoch_end(self, context: CallbackContext) -> None:
        context.stop.request()


def test_replicas_end_each_epoch_once_in_a_run_that_is_stopped_and_extended(tmp_path: Path) -> None:
    seen = []

    def again(epochs: int, *callbacks: Callback) -> bool:
        seen.append(Recording())
        settings = other_training("downpour", epochs=epochs)
        given = [seen[-1], *callbacks]
        return train(tmp_path / "run", given, training=settings, module=plain_net(), resume=Resume.IF_STARTED)

    again(4, Requesting())
    assert again(4) and again(6)
    ended = [each.epoch for part in seen for each in part.of("on_epoch_end")]
    assert ended == [1, 2, 3, 4, 5, 6]
    assert seen[-1].of("on_end")[-1].epoch == 6


def test_epochs_that_end_together_are_reported_one_by_one() -> None:
    trainer, found = EndsEpochs(), list[int]()
    trainer.found = found
    for ended in (0, 2, 2, 3):
        trainer.end_epochs(ended)
    assert found == [1, 2, 3]


class EndsEpochs(Trainer):
    """Records the epochs that end."""

    number, parameters, found = 0, 1, list[int]()

    def resume(self, checkpoint: Checkpoint) -> None:
        """Have no state."""

    def run(self) -> bool:
        """Train nothing."""
        return True

    def call(self, hook: str, *, checkpoint: Path | None = None, status: Status = "running") -> None:
        assert hook == "on_epoch_end"
        self.found.append(self.epochs_ended)


@pytest.mark.parametrize("strategy", ["batch", "downpour"])
def test_other_strategies_end_and_continue_as_callbacks_say(strategy: str, tmp_path: Path) -> None:
    run, hook = tmp_path / "run", "on_step_end" if strategy == "batch" else "on_epoch_end"
    words = {} if strategy == "batch" else {"epochs": 60}

    def again(error: BaseException, at: int, **more: Any) -> bool:
        given = [Stopping(hook, error, at)]
        settings = other_training(strategy, **{**words, **more})
        return train(run, given, training=settings, module=plain_net(), resume=Resume.IF_STARTED)

    assert again(StopTraining("enough"), 2)
    number = last(RunDirectory.open(run).checkpoints).step
    end = events(RunDirectory.open(run), "end")[-1]
    assert (end["status"], end["reason"]) == ("finished", "Stopping: enough")
    assert number == 2 if strategy == "batch" else number < 30 * 60
    assert again(StopTraining("enough"), 2)
    assert "Stopping" in str(events(RunDirectory.open(run), "already_complete")[-1]["reason"])
    assert last(RunDirectory.open(run).checkpoints).step == number
    assert again(StopTraining(), 10**9, **({"max_iterations": 7} if strategy == "batch" else {"epochs": 61}))
    assert last(RunDirectory.open(run).checkpoints).step > number

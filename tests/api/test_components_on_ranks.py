"""Callbacks, metrics and optimisers of a program in the ranks that it starts."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.api.conftest import Desk
from tests.support.api.digits import halves, network
from torch import Tensor

import cotswold
from cotswold.api.status import lines
from cotswold.callbacks import Callback, CallbackContext, ModelEMA
from cotswold.errors import UserError
from cotswold.host.stack_dump import is_supported


class Epochs(Callback):
    """Writes a line to a file at the end of each epoch."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_epoch_end(self, context: CallbackContext) -> None:
        with self.file.open("a") as file:
            file.write(f"{context.epoch} {context.step}\n")


class Stacks(Callback):
    """Writes the stacks of all processes of the run to a file, once."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_epoch_end(self, context: CallbackContext) -> None:
        if not self.file.exists():
            found = cotswold.why(context.run, stacks=True)
            self.file.write_text("\n".join(lines(found)))


def wrong(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of wrong answers."""
    return (output.argmax(1) != target).double().mean()


@pytest.mark.slow
def test_a_module_on_replicas_has_the_callbacks_the_optimiser_and_the_metrics_of_its_program(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words: dict[str, Any] = {
        "loss": "cross_entropy",
        "optimizer": partial(torch.optim.AdamW, lr=0.01),
        "scheduler": cotswold.PerEpoch(partial(torch.optim.lr_scheduler.StepLR, step_size=1)),
        "metrics": [wrong],
        "validation": 0.25,
        "epochs": 3,
        "batch_size": 8,
    }
    alone, spread = network(), network()
    one = cotswold.train(alone, halves(), directory=tmp_path / "alone", **words)
    two = cotswold.train(
        spread,
        halves(),
        directory=tmp_path / "spread",
        replicas=2,
        callbacks=[Epochs(tmp_path / "lines")],
        **words,
    )
    assert (tmp_path / "lines").read_text().split() == ["1", "6", "2", "12", "3", "18"]
    assert all(map(partial(torch.allclose, atol=1e-5), alone.parameters(), spread.parameters()))
    measured = [
        [event["wrong"] for event in run.events if event["kind"] == "validation"] for run in (one, two)
    ]
    assert measured[0] == measured[1] and len(measured[0]) == 4
    assert str(two.events[0]["optimizer"]).endswith(".AdamW") and two.events[0]["replicas"] == 2
    capfd.readouterr()


@pytest.mark.slow
@pytest.mark.skipif(not is_supported(), reason="stacks need /proc")
def test_stacks_of_a_run_on_replicas_are_those_of_each_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = cotswold.train(
        network(),
        halves(),
        loss="cross_entropy",
        directory=tmp_path / "run",
        replicas=2,
        callbacks=[Stacks(tmp_path / "stacks")],
        epochs=1,
        batch_size=8,
    )
    said = (tmp_path / "stacks").read_text()
    _, first, second = re.split(r"^rank-[01] \(process \d+\):$", said, flags=re.MULTILINE)
    assert "test_components_on_ranks.py" in first, "rank 0 is in the callback"
    assert all("most recent call first" in each and "trainers/sync.py" in each for each in (first, second))
    assert "most recent call first" in (run.path / "logs" / "rank-1.log").read_text()
    capfd.readouterr()


@pytest.mark.slow
def test_a_module_on_replicas_has_its_own_weights_and_the_run_has_the_average(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained, averages, losses = [], [], []
    inputs, labels = halves().tensors
    for replicas in (1, 2):
        module = network().double()
        run = cotswold.train(
            module,
            (inputs.double(), labels),
            directory=tmp_path / str(replicas),
            loss="cross_entropy",
            validation=0.25,
            batch_size=8,
            epochs=2,
            callbacks=[ModelEMA(0.8)],
            replicas=replicas,
        )
        trained.append(module.state_dict())
        averages.append(run.load(network().double()).state_dict())
        losses.append([event["loss"] for event in run.events if event["kind"] == "validation"])
        assert not module.training
        assert not torch.allclose(trained[-1]["0.weight"], averages[-1]["0.weight"], atol=1e-5)
    for found in (trained, averages):
        torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    capfd.readouterr()


@pytest.mark.slow
def test_a_recipe_on_a_grid_has_the_callbacks_of_its_program(
    desk: Desk, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines"
    run = cotswold.train_recipe(
        desk.stacks_recipe, tmp_path / "run", stores=desk.stores, grid="1x2", callbacks=[Epochs(file)]
    )
    assert run.status == "finished" and file.read_text().count("\n") >= 1
    assert [each for each in run.events if each["kind"] == "callback_failed"] == []
    capfd.readouterr()


def test_objects_that_no_process_can_receive_are_named(desk: Desk, tmp_path: Path) -> None:
    callback = Epochs(tmp_path / "lines")
    callback.handle = (tmp_path / "open").open("w")  # type: ignore[attr-defined]  # any attribute may be set
    with pytest.raises(UserError, match="components cannot be sent to other processes"):
        cotswold.train_recipe(
            desk.stacks_recipe, tmp_path / "run", stores=desk.stores, grid="1x2", callbacks=[callback]
        )
    with pytest.raises(UserError, match="components cannot be sent to other processes"):
        cotswold.train(
            network(),
            halves(),
            loss="cross_entropy",
            directory=tmp_path / "run",
            replicas=2,
            callbacks=[callback],
        )
    callback.handle.close()  # type: ignore[attr-defined]  # set above
    assert not (tmp_path / "run").exists()

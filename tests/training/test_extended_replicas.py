"""Events of a run of replicas that is asked for more epochs."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import nn

from cotswold.errors import MachineError
from cotswold.recipe.schema import DownpourTraining
from cotswold.shards.core.sample_ledger import SampleLedger
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.trainers.async_sgd import AsyncTrainer
from cotswold.ui.describe import describe

SAMPLES = 1000


def resumed(epochs: int) -> list[dict[str, object]]:
    """Return the events of a run that was stopped before 3 epochs and is resumed for ``epochs``."""
    written = list[dict[str, object]]()
    recorder = SimpleNamespace(event=lambda kind, **fields: written.append({"kind": kind, **fields}))
    training = DownpourTraining(strategy="downpour", epochs=epochs, batch_size=16, learning_rate=0.1)

    def start(snapshot: object) -> Any:
        raise MachineError("no process is started")

    runs = AsyncTrainer(start, FlatParameters(nn.Linear(2, 1)), SAMPLES, training, cast(Any, recorder), {})
    strategy = {
        "vectors": [],
        "ledger": SampleLedger(SAMPLES).state(),
        "versions": [],
        "counters": {"session": 1, "rates": []},
        "is_finished": False,
        "epochs": 3,
        "patience": None,
        "best_loss": None,
        "since_best": 0,
        "ended": None,
        "pushed": {},
    }
    state = {"strategy": strategy, "position": {"phase": 0, "step": 5, "total": 5}}
    runs.resume(cast(Any, SimpleNamespace(state=state, path="0", read_into=lambda name, tensor: None)))
    with suppress(MachineError):
        runs.run()
    return written


def test_more_epochs_are_told_by_an_event_as_for_other_strategies() -> None:
    (event,) = resumed(7)
    assert event == {"kind": "extended", "epochs": [7.0]}
    assert describe(event) == "extended to 7 epochs"


@pytest.mark.parametrize("epochs", [2, 3])
def test_epochs_that_are_not_more_extend_nothing(epochs: int) -> None:
    assert resumed(epochs) == []

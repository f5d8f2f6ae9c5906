"""Short runs of a small module with callbacks.

Knows: a module with dropout and batch normalisation, jobs. Does not know: the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.support.training.runs import bits
from torch import nn
from torch.utils.data import TensorDataset

from cotswold.recipe.schema import SupervisedTraining
from cotswold.run import RunDirectory, Stop
from cotswold.training import Resume, open_module_job
from cotswold.training.components import Components

SAMPLES, BATCH, EPOCHS = 40, 8, 4
STEPS = 4  # of an epoch: 30 samples, the last batch with 6


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def plain_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def data() -> TensorDataset:
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 5, generator=drawn)
    return TensorDataset(x, (x[:, 0] > 0).long())


def supervised(**words: Any) -> SupervisedTraining:
    return SupervisedTraining(
        **{"strategy": "supervised", "batch_size": BATCH, "epochs": EPOCHS, "threads": 1, **words}
    )


def train(
    run: Path,
    callbacks: Sequence[Any],
    *,
    training: Any = None,
    module: nn.Module | None = None,
    stop: Stop | None = None,
    resume: Resume = Resume.NEVER,
    validation: float | None = 0.25,
    components: Components | None = None,
) -> bool:
    job = open_module_job(
        module or net(),
        data(),
        loss="cross_entropy",
        directory=run,
        settings=training or supervised(),
        validation=validation,
        resume=resume,
        components=components or Components(callbacks=callbacks),
    )
    return job.train(lambda event: None, stop or Stop())


def tensors(run: RunDirectory | Path) -> dict[str, list[int]]:
    return bits(run if isinstance(run, RunDirectory) else RunDirectory.open(run))[0]

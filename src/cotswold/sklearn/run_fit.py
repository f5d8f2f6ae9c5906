"""Full-batch optimisation as a run: with workers, or in a directory to keep.

Knows: jobs of modules, events of a run. Does not know: scikit-learn, methods.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from cotswold.recipe.schema import BatchTraining, Cluster
from cotswold.run import Stop
from cotswold.sklearn.gradient import Loss
from cotswold.sklearn.network import PenalisedLoss, PenalisedNetwork
from cotswold.sklearn.optimise import OptimisationHistory
from cotswold.sklearn.samples import WeightedSamples


def optimise_in_run(
    network: nn.Sequential,
    loss: Loss,
    samples: WeightedSamples,
    held: WeightedSamples | None,
    training: BatchTraining,
    decay: float,
    *,
    workers: int,
    directory: str | Path | None,
) -> tuple[OptimisationHistory, Path | None]:
    """Train a network in place, as `optimise` does; return also the run's directory, if it is kept."""
    from cotswold.api.run import Run
    from cotswold.api.threads import preserve_random_states
    from cotswold.training import open_module_job

    history = OptimisationHistory()

    def hear(event: Mapping[str, object]) -> None:
        if event["kind"] == "step":
            history.losses.append(float(str(event["loss"])))
        elif event["kind"] == "validation":
            history.validation.append(float(str(event["loss"])))
        elif event["kind"] == "phase_end" and not str(event["reason"]).startswith("training.max_iterations"):
            history.ended = str(event["reason"])

    with run_directory(directory) as path:
        job = open_module_job(
            PenalisedNetwork(*network),
            (_with_factor(samples.inputs, decay), samples.targets),
            loss=PenalisedLoss(loss),
            directory=path,
            settings=training,
            cluster=Cluster(workers=workers),
            validation=None if held is None else (_with_factor(held.inputs, 0.0), held.targets),
        )
        with preserve_random_states():
            job.train(watch=hear, stop=Stop())
        Run(path).load(network)
    return history, None if directory is None else path


def _with_factor(inputs: Tensor, decay: float) -> Tensor:
    """Append the factor of the penalty to the features of each sample."""
    return torch.cat([inputs, inputs.new_full((len(inputs), 1), decay)], 1)


@contextmanager
def run_directory(directory: str | Path | None) -> Iterator[Path]:
    """Yield a new directory for a run: inside ``directory``, or a temporary one that is removed."""
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="cotswold-", ignore_cleanup_errors=True) as folder:
            yield Path(folder) / "run"
        return
    Path(directory).mkdir(parents=True, exist_ok=True)
    yield Path(tempfile.mkdtemp(prefix="fit-", dir=directory))

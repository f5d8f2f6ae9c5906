"""Full-batch optimisation as a run: with workers, or in a directory to keep.

Knows: jobs of modules, events of a run. Does not know: scikit-learn, methods.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from cotswold.recipe.schema import BatchTraining, Cluster
from cotswold.run import Stop
from cotswold.sklearn.optimise import Loss, OptimisationHistory
from cotswold.sklearn.samples import WeightedSamples


def optimise_in_run(
    network: nn.Module,
    loss: str | Loss,
    samples: WeightedSamples,
    held: WeightedSamples | None,
    training: BatchTraining,
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
            network,
            (samples.inputs, samples.targets),
            loss=loss,
            directory=path,
            settings=training,
            cluster=Cluster(workers=workers),
            validation=None if held is None else (held.inputs, held.targets),
        )
        with preserve_random_states():
            job.train(watch=hear, stop=Stop())
        Run(path).load(network)
    return history, None if directory is None else path


@contextmanager
def run_directory(directory: str | Path | None) -> Iterator[Path]:
    """Yield a new directory for a run: inside ``directory``, or a temporary one that is removed."""
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="cotswold-", ignore_cleanup_errors=True) as folder:
            yield Path(folder) / "run"
        return
    Path(directory).mkdir(parents=True, exist_ok=True)
    yield Path(tempfile.mkdtemp(prefix="fit-", dir=directory))

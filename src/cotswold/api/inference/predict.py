"""Predictions of a supervised run for new samples.

Knows: the combination of a run and a source. Does not know: networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.inference.inputs import InferenceInputs, open_inputs
from cotswold.api.run import Run
from cotswold.api.threads import compute_threads
from cotswold.phrases import counted
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn


@dataclass(frozen=True)
class Predictions:
    """Predictions of a network, one row per sample.

    Args:
        names: Names of the samples, Python strings (sample,).
        classes: Names of the classes; empty for regression.
        probabilities: float32 (sample, class). With loss `squared_error` these are the raw outputs; for
            regression they are the predicted targets (sample, target).
        skipped: Unreadable samples, each with the reason.
        notes: Sentences on a table: new categories, and columns that the run does not read.
    """

    names: NDArray[np.object_]
    """Python strings (sample,)."""
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    """(sample, class): probabilities, raw outputs with loss `squared_error`, or predicted targets (sample,
    target).
    """
    skipped: tuple[str, ...]
    """Unreadable samples, each with the reason."""
    notes: tuple[str, ...] = ()
    """Sentences on a table: new categories, and columns that the run does not read."""

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        width = self.probabilities.shape[1]
        named = ", ".join(self.classes[:_SHOWN]) + (", …" if width > _SHOWN else "")
        what = f"{counted(width, 'class')} ({named})" if self.classes else f"{counted(width, 'number')} each"
        left_out = f"; {len(self.skipped)} left out" if self.skipped else ""
        first = [
            f"  {name}: " + (f"{best} {row.max():.3f}" if best else _numbers(row.tolist()))
            for name, row, best in zip(
                self.names[:_FIRST],
                self.probabilities[:_FIRST],
                self.best[:_FIRST] or [""] * _FIRST,
                strict=False,
            )
        ]
        return "\n".join([f"<Predictions of {counted(len(self), 'sample')}: {what}{left_out}>", *first])

    @property
    def best(self) -> list[str]:
        """The most likely class of every sample; empty for regression."""
        return [self.classes[number] for number in self.probabilities.argmax(1)] if self.classes else []


_SHOWN, _FIRST = 8, 3


def _numbers(row: list[float]) -> str:
    return ", ".join(f"{each:.4g}" for each in row[:_SHOWN]) + (", …" if len(row) > _SHOWN else "")


def predict(
    run: Run | str | Path,
    source: object,
    *,
    threads: int | None = None,
    progress: bool | None = None,
) -> Predictions:
    """Compute the probability of every class for every sample of a source, with a supervised run.

    The samples are prepared like the run's own.

    Args:
        run: The run, or its directory.
        source: Images, vectors or frames: a folder, a zip, an array file, or one image. For a run on a table,
            a CSV or Parquet file, a frame of pandas or polars, or an array, with the columns of the run in
            any order; the target may be absent.
        threads: Number of threads. [as in the recipe, else all cores]
        progress: Show progress. [if on a terminal or in a notebook]

    Raises:
        RunError: if the run cannot be used.
        SourceError: if the source cannot be read.
        MemoryLimitError: if the memory does not suffice.
    """
    import numpy as np

    from cotswold.data.sources.base import samples_noun

    with open_prediction(run, source, threads, progress) as work:
        names: list[str] = []
        rows: list[NDArray[np.float32]] = []
        with work.display.count("predicting", samples_noun(work.source.kind)) as advance:
            for called, likely in work.batches():
                names += called
                rows.append(likely.float().cpu().numpy())
                advance(len(names), len(work.source))
        left_out, notes = work.skipped(), work.table_notes()
    return Predictions(np.array(names, object), work.classes, np.concatenate(rows), left_out, notes)


@dataclass(frozen=True, kw_only=True)
class PredictionInputs(InferenceInputs):
    """A network that predicts classes or targets, and its samples."""

    network: nn.Module
    classes: tuple[str, ...]
    loss: str
    predicted: Callable[[Tensor], Tensor]
    """Converts standardised outputs to regression targets."""

    def batches(self) -> Iterator[tuple[list[str], Tensor]]:
        """Yield names of samples, and the probability of each class (sample, class)."""
        import torch

        likely: dict[str, Callable[[Tensor], Tensor]] = {
            "cross_entropy": partial(torch.softmax, dim=1),
            "bce_with_logits": torch.sigmoid,
        }
        for maps, indices in self.samples:
            with torch.no_grad():
                scores = self.network(maps.to(self.device))
            yield (
                list(map(self.source.name, indices.tolist())),
                likely[self.loss](scores) if self.loss in likely else self.predicted(scores),
            )


@contextmanager
def open_prediction(
    run: Run | str | Path,
    source: object,
    threads: int | None,
    progress: bool | None,
) -> Iterator[PredictionInputs]:
    """Open a run's network and a source in a `with` block; predictions are computed batch by batch."""
    known = Run(run)
    known.require_recipe_run("predictions")
    recipe = known.recipe
    with compute_threads(threads, recipe):
        from cotswold import training
        from cotswold.data import stream

        trained = training.trained_layers(known.directory)
        network, prepared = trained.network, trained.prepared
        found = open_inputs(source, prepared.transform)
        samples = stream(found, prepared.transform, recipe.training.batch_size)
        yield PredictionInputs(
            source=found,
            samples=samples,
            device=recipe.training.device,
            display=display_for(progress),
            network=network,
            classes=prepared.classes,
            loss=recipe.loss,
            predicted=prepared.predicted,
        )

"""Classes of other pictures, from a supervised run.

Knows: how a run and a source come together. Does not know: networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_path
from cotswold.api.inference.inputs import AskedSamples
from cotswold.api.run import Run
from cotswold.api.threads import computing
from cotswold.ui.display import display_for
from cotswold.words import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn


@dataclass(frozen=True)
class Predictions:
    """What a network takes samples for, a row a sample."""

    names: NDArray[np.object_]
    """Texts of Python (sample,)."""
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    """(sample, class). With loss `squared` these are the outputs themselves, no probabilities; where a run
    learnt numbers instead of classes, these numbers (sample, number)."""
    left_out: tuple[str, ...]
    """Samples that could not be read, each with the reason."""

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        width = self.probabilities.shape[1]
        named = ", ".join(self.classes[:_SHOWN]) + (", …" if width > _SHOWN else "")
        what = f"{counted(width, 'class')} ({named})" if self.classes else f"{counted(width, 'number')} each"
        left_out = f"; {len(self.left_out)} left out" if self.left_out else ""
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
        """The likeliest class of every sample; empty for a run that learnt numbers."""
        return [self.classes[number] for number in self.probabilities.argmax(1)] if self.classes else []


_SHOWN, _FIRST = 8, 3


def _numbers(row: list[float]) -> str:
    return ", ".join(f"{each:.4g}" for each in row[:_SHOWN]) + (", …" if len(row) > _SHOWN else "")


def predict(
    run: Run | str | Path,
    source: str | Path,
    *,
    threads: int | None = None,
    progress: bool | None = None,
) -> Predictions:
    """The probability of every class for every sample of a source, by a supervised run.

    Samples (pictures, vectors or frames: a folder, a zip, an array file, or one picture) are prepared as the
    run's own were.
    Raises RunError, SourceError, MemoryLimitError.
    """
    import numpy as np

    with answering(run, source, threads, progress) as work:
        names: list[str] = []
        rows: list[NDArray[np.float32]] = []
        with work.display.counting("predicting", work.source.kind) as advance:
            for called, likely in work.batches():
                names += called
                rows.append(likely.float().cpu().numpy())
                advance(len(names), len(work.source))
        left_out = work.left_out()
    return Predictions(np.array(names, object), work.classes, np.concatenate(rows), left_out)


@dataclass(frozen=True, kw_only=True)
class Answering(AskedSamples):
    """A network that names classes, and the samples that it is asked about."""

    network: nn.Module
    classes: tuple[str, ...]
    loss: str
    predicted: Callable[[Tensor], Tensor]
    """Turns outputs of a network that learnt numbers into these numbers."""

    def batches(self) -> Iterator[tuple[list[str], Tensor]]:
        """Names of samples, and the probability of each class (sample, class)."""
        import torch

        likely: dict[str, Callable[[Tensor], Tensor]] = {
            "cross_entropy": partial(torch.softmax, dim=1),
            "logistic": torch.sigmoid,
        }
        for maps, indices in self.samples:
            with torch.no_grad():
                scores = self.network(maps.to(self.device))
            yield (
                list(map(self.source.name, indices.tolist())),
                likely[self.loss](scores) if self.loss in likely else self.predicted(scores),
            )


@contextmanager
def answering(
    run: Run | str | Path,
    source: str | Path,
    threads: int | None,
    progress: bool | None,
) -> Iterator[Answering]:
    """A run's network and a source, opened; answers come batch by batch inside the `with` block."""
    known = Run(run)
    known.refuse_module("predictions")
    check_path("the source", source)
    recipe = known.recipe
    with computing(threads, recipe):
        from cotswold import training
        from cotswold.data import open_asked, stream

        trained = training.trained_layers(known.directory)
        network, prepared = trained.network, trained.prepared
        found = open_asked(source, prepared.transform.preparation.kind)
        samples = stream(found, prepared.transform, recipe.training.batch_size)
        yield Answering(
            source=found,
            samples=samples,
            device=recipe.training.device,
            display=display_for(progress),
            network=network,
            classes=prepared.classes,
            loss=recipe.loss,
            predicted=prepared.predicted,
        )

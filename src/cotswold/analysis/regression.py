"""Regression errors of a network on labelled samples.

Knows: squared errors, explained variance. Does not know: where samples come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from cotswold.analysis.results_file import ResultsFile, html_table, metric_lines, metric_table
from cotswold.errors import SourceError
from cotswold.phrases import counted


@dataclass(frozen=True)
class Regression:
    """Regression errors on the samples of a split, one figure per target.

    Attributes:
        step: step of the evaluated checkpoint.
        split: name of the split, or of the source.
        samples: number of samples.
        squared_error: mean squared error of each target.
        explained: R² of each target; None if the target is constant.
        rmse: root mean squared error of each target, in the target's unit.
        metrics: further metrics by name, with the loss; None if a metric has no value.
        targets: names of the targets; empty if they have none.
    """

    step: int
    split: str
    samples: int
    squared_error: tuple[float, ...]
    """Mean squared error of each target."""
    explained: tuple[float | None, ...]
    """R²: fraction of the variance that is explained; None if a target is the same for all samples."""
    rmse: tuple[float, ...]
    """Root mean squared error of each target, in its unit."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Metrics by name, with the loss; None if a metric has no value."""
    targets: tuple[str, ...] = ()
    """Names of the targets; empty if they have none."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the targets; their numbers, counted from 0, if they have no names."""
        return self.targets or tuple(map(str, range(len(self.rmse))))

    @property
    def loss(self) -> float:
        """Value of the loss `squared_error`: the mean squared error, summed over the targets."""
        return sum(self.squared_error)

    def __repr__(self) -> str:
        figures = zip(self.names, self.rmse, self.explained, strict=True)
        lines = [
            f"Regression of step {self.step}: squared loss {self.loss:.5g} over {self.samples:,} samples of "
            f"{self.split}, {counted(len(self.rmse), 'target')}"
        ]
        lines += [
            f"  {name}: RMSE {root:.5g}, variance explained {'none' if part is None else f'{part:.1%}'}"
            for name, root, part in islice(figures, _SHOWN_OUTPUTS)
        ]
        lines += ["  …"] if len(self.rmse) > _SHOWN_OUTPUTS else []
        return "\n".join([*lines, *metric_lines(self.metrics, "loss")])

    def _repr_html_(self) -> str:
        rows = [
            [name, f"{error:.5g}", f"{root:.5g}", "" if part is None else f"{part:.1%}"]
            for name, error, root, part in zip(
                self.names, self.squared_error, self.rmse, self.explained, strict=True
            )
        ]
        caption = f"Squared loss {self.loss:.5g} over {self.samples:,} samples of {self.split}"
        return html_table(
            caption, ["target", "mean squared error", "RMSE", "variance explained"], rows[:_ROWS]
        ) + metric_table(self.metrics, "loss")

    def to_json(self) -> str:
        """Return JSON text for `from_json`."""
        return REGRESSION.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Regression:
        """Return the result in JSON text.

        Args:
            text: the result of `to_json`.

        Raises:
            RunError: for any other or damaged text.
        """
        return REGRESSION.from_json(text)

    @classmethod
    def read(cls, path: Path) -> Regression | None:
        """Return the result in a file; None if the file does not exist.

        Args:
            path: a file written by `write`.

        Raises:
            RunError: if the file is damaged.
        """
        return REGRESSION.read(path)

    def write(self, path: Path) -> None:
        """Write a file atomically.

        Args:
            path: the file; an existing one is replaced.
        """
        REGRESSION.write(path, self)


_SHOWN_OUTPUTS, _ROWS = 8, 50
REGRESSION = ResultsFile(Regression, "regression")


def regress(
    network: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    step: int,
    split: str,
) -> Regression:
    """Compute the regression errors of a network's outputs.

    Args:
        network: maps samples to outputs (sample, target).
        batches: pairs of samples and targets (sample, target).
        step: step of the network's checkpoint.
        split: name of the split.

    Raises:
        SourceError: if `batches` is empty.
    """
    outputs, targets = [], []
    for samples, wanted in batches:
        with torch.no_grad():
            outputs.append(network(samples).double().cpu())
        targets.append(wanted.double().cpu())
    if not outputs:
        raise SourceError(f"{split} has no samples to predict")
    found, wanted = torch.cat(outputs), torch.cat(targets)
    errors = (found - wanted).square().mean(0)
    variance = wanted.var(0, correction=0)
    explained = tuple(
        1 - error / whole if whole > 0 else None
        for error, whole in zip(errors.tolist(), variance.tolist(), strict=True)
    )
    squared = tuple(errors.tolist())
    rmse = tuple(error**0.5 for error in squared)
    return Regression(step, split, len(wanted), squared, explained, rmse)

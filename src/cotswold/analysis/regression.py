"""How well a network predicts the numbers of labelled samples.

Knows: squared errors, the variance that is explained. Does not know: where samples come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cotswold.analysis.results_file import Sealed
from cotswold.analysis.tables import html_table
from cotswold.errors import SourceError


@dataclass(frozen=True)
class Regression:
    """Errors on the samples of a split, one figure for each number that is predicted."""

    step: int
    split: str
    samples: int
    squared_error: tuple[float, ...]
    """Mean over samples of the squared difference."""
    explained: tuple[float | None, ...]
    """R²: the part of the variance that is explained; None where a number is the same for all samples."""
    rmse: tuple[float, ...]
    """The root of each squared error, in the unit of its number."""

    @property
    def loss(self) -> float:
        """What the loss `squared` measures: the squared error, summed over the numbers."""
        return sum(self.squared_error)

    def __repr__(self) -> str:
        parts = ["none" if part is None else f"{part:.1%}" for part in self.explained]
        roots = [f"{root:.5g}" for root in self.rmse]
        more = ", …" if len(parts) > _SHOWN else ""
        return (
            f"Regression of step {self.step}: squared loss {self.loss:.5g} over {self.samples:,} samples of "
            f"{self.split}; {len(parts)} predicted, RMSE {', '.join(roots[:_SHOWN])}{more}, "
            f"variance explained {', '.join(parts[:_SHOWN])}{more}"
        )

    def _repr_html_(self) -> str:
        rows = [
            [str(number), f"{error:.5g}", f"{root:.5g}", "" if part is None else f"{part:.1%}"]
            for number, (error, root, part) in enumerate(
                zip(self.squared_error, self.rmse, self.explained, strict=True)
            )
        ]
        caption = f"Squared loss {self.loss:.5g} over {self.samples:,} samples of {self.split}"
        return html_table(
            caption, ["number", "mean squared error", "RMSE", "variance explained"], rows[:_ROWS]
        )

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        return REGRESSION.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Regression:
        """The inverse of `to_json`; raises RunError for text that is something else, or damaged."""
        return REGRESSION.from_json(text)

    @classmethod
    def read(cls, path: Path) -> Regression | None:
        """The result in a file; None where there is no file, RunError where it is damaged."""
        return REGRESSION.read(path)

    def write(self, path: Path) -> None:
        """Have a file hold it, whole or not at all."""
        REGRESSION.write(path, self)


_SHOWN, _ROWS = 8, 50
REGRESSION = Sealed(Regression, "regression")


def regress(
    network: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    step: int,
    split: str,
) -> Regression:
    """The errors of a network's outputs against targets (sample, number); SourceError where there are
    none."""
    outputs, targets = [], []
    for samples, wanted in batches:
        with torch.no_grad():
            outputs.append(network(samples).double().cpu())
        targets.append(wanted.double().cpu())
    if not outputs:
        raise SourceError(f"there is no sample to predict in {split}")
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

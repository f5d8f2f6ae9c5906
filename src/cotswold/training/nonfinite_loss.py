"""Why a loss is not finite: samples that are not, or numbers that are too large.

Knows: batches. Does not know: networks, steps, who computes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.training.data.batches import parts_of
from cotswold.training.strategies.base import Batch

_LARGE = 100.0
"""Numbers beyond this are larger than the usual learning rates are made for."""


def check_finite(batch: Batch, what: str = "the data set") -> None:
    """Raise UserError for samples or targets that are not finite; names the first such sample."""
    if said := spoilt_sample(batch, what):
        raise UserError(said)


@torch.no_grad()
def spoilt_sample(batch: Batch, what: str = "the data set") -> str:
    """A sentence that names the first sample of a batch that is not finite; empty if all are finite."""
    inputs = [("input", each) for each in parts_of(batch.inputs)]
    for part, values in (*inputs, ("target", batch.targets), ("weight", batch.weights)):
        if not isinstance(values, Tensor) or not (values.is_floating_point() or values.is_complex()):
            continue
        wrong = ~values.isfinite().flatten(1).all(1) if values.dim() > 1 else ~values.isfinite()
        if not bool(wrong.any()):
            continue
        place = int(wrong.nonzero()[0])
        named = "a sample" if batch.numbers is None else f"sample {batch.numbers[place]}"
        return (
            f"{named} of {what} has NaN or infinity in its {part}, so the loss is not finite; mend the "
            "sample, or leave it out"
        )
    return ""


@torch.no_grad()
def remedy_of_scale(batch: Batch) -> str:
    """A remedy for large numbers in a batch, which can make the loss infinite; empty if there are none."""
    for what, values in (("targets", batch.targets), ("samples", batch.inputs)):
        if isinstance(values, Tensor) and values.is_floating_point() and values.numel():
            most = float(values.abs().max())
            if most > _LARGE:
                return (
                    f"the {what} reach {most:.3g}: standardise them (subtract the mean, divide by the "
                    "standard deviation), or try a smaller learning rate (training.learning_rate)"
                )
    return ""

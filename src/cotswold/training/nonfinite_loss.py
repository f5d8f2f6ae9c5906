"""Diagnosis of a loss that is not finite: non-finite samples, or values that are too large.

Knows: batches. Does not know: networks, steps, which process computes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.training.data.batches import parts_of
from cotswold.training.strategies.base import Batch

_LARGE = 100.0
"""Values beyond this are too large for the usual learning rates."""


def check_finite(batch: Batch, what: str = "the data set") -> None:
    """Raise UserError naming the first sample with a non-finite input, target or weight."""
    if said := describe_nonfinite_sample(batch, what):
        raise UserError(said)


@torch.no_grad()
def describe_nonfinite_sample(batch: Batch, what: str = "the data set") -> str:
    """Return a sentence that names the first non-finite sample of a batch; empty if all are finite."""
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
            f"{named} of {what} has NaN or infinity in its {part}, so the loss is not finite; fix the "
            "sample, or remove it"
        )
    return ""


@torch.no_grad()
def remedy_of_scale(batch: Batch) -> str:
    """Return a remedy if a batch has large values, which can make the loss infinite; otherwise empty."""
    for what, values in (("targets", batch.targets), ("samples", batch.inputs)):
        if isinstance(values, Tensor) and values.is_floating_point() and values.numel():
            most = float(values.abs().max())
            if most > _LARGE:
                return (
                    f"the {what} reach {most:.3g}: standardise them (subtract the mean, divide by the "
                    "standard deviation), or try a smaller learning rate (training.learning_rate)"
                )
    return ""

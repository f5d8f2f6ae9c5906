"""Standardisation of regression targets, so that a learning rate does not depend on their unit.

Knows: mean and deviation of the targets of a training split. Does not know: networks, stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.files import MalformedError


@dataclass(frozen=True)
class TargetScale:
    """Mean and standard deviation of each regression target; a constant target is not divided."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, targets: NDArray[Any]) -> TargetScale:
        """Return the scale of targets (sample, number)."""
        wide = targets.astype(np.float64)
        constant = wide.min(0) == wide.max(0)
        mean = np.where(constant, wide[0], wide.mean(0))
        deviation = np.where(constant, 0.0, wide.std(0))
        return cls(tuple(mean.tolist()), tuple(deviation.tolist()))

    def scaled(self, targets: Tensor) -> Tensor:
        """Standardise targets (sample, number) to mean 0 and deviation 1."""
        mean, divisor = self._tensors(targets)
        return ((targets.double() - mean) / divisor).to(targets.dtype)

    def restored(self, outputs: Tensor) -> Tensor:
        """Invert `scaled` for the outputs of a network."""
        mean, divisor = self._tensors(outputs)
        return (outputs.double() * divisor + mean).to(outputs.dtype)

    @property
    def notes(self) -> list[str]:
        """Sentences for users: that targets are standardised, and which are constant."""
        found = [
            "regression targets are standardised (mean 0 and deviation 1 over the training split): losses of "
            "a run are in these units; predict and evaluate use the original units"
        ]
        constant = [str(number) for number, each in enumerate(self.deviation) if each == 0]
        if constant:
            found.append(
                f"regression targets that are constant over all training samples (from 0): "
                f"{', '.join(constant)}; a network cannot learn anything from them"
            )
        return found

    def state(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return {"mean": list(self.mean), "deviation": list(self.deviation)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TargetScale:
        """Restore a scale from `state`. Raises MalformedError for anything else."""
        try:
            mean, deviation = (tuple(map(float, state[name])) for name in ("mean", "deviation"))
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"does not describe a scale of targets ({error})") from error
        if len(mean) != len(deviation) or not np.isfinite([*mean, *deviation]).all() or min(deviation) < 0:
            raise MalformedError("does not describe a scale of targets (a mean or deviation is missing)")
        return cls(mean, deviation)

    def _tensors(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.tensor(self.mean, dtype=torch.float64, device=like.device)
        divisor = torch.tensor(
            [each or 1.0 for each in self.deviation], dtype=torch.float64, device=like.device
        )
        return mean, divisor

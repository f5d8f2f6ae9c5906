"""Data sets of inputs and targets given as tensors or NumPy arrays.

Knows: the NumPy types that torch supports, inputs of several parts. Does not know: batches, modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from cotswold.errors import UserError


def columns(given: tuple[Any, ...] | list[Any]) -> Dataset[Any] | None:
    """Return the data set of ``(inputs, targets)``; None if ``given`` has another form.

    Inputs are a tensor, an array, or a tuple or dict of these. Floating-point arrays become torch's default
    type, and integer targets int64. Raises UserError for columns of different lengths, and for arrays without
    numbers.
    """
    if not given or not all(_is_column(each, nested=isinstance(given, tuple)) for each in given):
        return None
    if len(given) != 2:
        lengths = ", ".join(str(_length(each)) for each in given)
        raise UserError(
            f"a data set of tensors or arrays is a pair (inputs, targets) of equal length, got {lengths}; "
            "give inputs of several parts as a tuple or a dict: ((first, second), targets)"
        )
    inputs, targets = _mapped(given[0], _tensor), _targets(given[1])
    counts = [*_lengths(inputs), len(targets)]
    if len(set(counts)) > 1:
        raise UserError(
            "a data set of tensors or arrays is a pair (inputs, targets) of equal length, got "
            f"{', '.join(map(str, counts))}"
        )
    return TensorDataset(inputs, targets) if isinstance(inputs, Tensor) else Parts(inputs, targets)


class Parts(Dataset[Any]):
    """Samples whose inputs have several parts, as a tuple or dict of tensors."""

    def __init__(self, inputs: tuple[Tensor, ...] | dict[str, Tensor], targets: Tensor) -> None:
        self._inputs, self._targets = inputs, targets

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return _mapped(self._inputs, lambda part: part[index]), self._targets[index]


def _is_column(each: object, *, nested: bool) -> bool:
    if isinstance(each, Tensor | np.ndarray):
        return True
    parts = [*each.values()] if isinstance(each, Mapping) else each if isinstance(each, tuple) else []
    return nested and bool(parts) and all(isinstance(part, Tensor | np.ndarray) for part in parts)


def _mapped(inputs: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to each part of the inputs."""
    if isinstance(inputs, Mapping):
        return {name: change(part) for name, part in inputs.items()}
    return tuple(map(change, inputs)) if isinstance(inputs, tuple) else change(inputs)


def _lengths(inputs: Any) -> list[int]:
    parts = [*inputs.values()] if isinstance(inputs, Mapping) else inputs
    return [len(part) for part in (parts if isinstance(parts, tuple | list) else [parts])]


def _length(column: Any) -> int:
    return _lengths(column)[0]


def _tensor(given: Any) -> Tensor:
    """Return an array as a tensor, and a tensor unchanged."""
    if isinstance(given, Tensor):
        if not given.dim():
            raise UserError("a tensor without dimensions holds no samples; give one of shape (sample, ...)")
        return given
    if given.dtype.kind not in "buif" or given.dtype.itemsize > 8 or not given.ndim:
        raise UserError(
            f"an array of type {given.dtype} and shape {given.shape} is not supported; give whole "
            "or floating-point numbers (sample, ...), and classes as numbers from 0"
        )
    if given.dtype.kind == "f" and given.dtype.itemsize > 2:
        return torch.from_numpy(np.ascontiguousarray(given)).to(torch.get_default_dtype())
    if given.dtype.kind == "u" and given.dtype.itemsize > 1:
        given = given.astype(np.int64)
    return torch.from_numpy(np.array(given))  # a copy, because torch warns about read-only arrays


def _targets(given: Any) -> Tensor:
    if isinstance(given, Mapping | tuple):
        raise UserError("targets have several parts; give one tensor or array (sample, ...)")
    targets = _tensor(given)
    is_whole = not targets.is_floating_point() and not targets.is_complex() and targets.dtype != torch.bool
    return targets.long() if is_whole and isinstance(given, np.ndarray) else targets

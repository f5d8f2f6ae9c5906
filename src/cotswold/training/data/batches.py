"""Batches from the items of a data set or DataLoader: inputs, of one or several tensors, and targets.

Knows: the results of torch's collate function, how a module is called with several inputs. Does not know:
orders of samples, losses.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from cotswold.errors import UserError
from cotswold.training.losses import Loss, class_weights, counted_mask, is_classes, target_weights
from cotswold.training.strategies.base import Batch, Share

_UNEQUAL = ("stack expects each tensor to be equal size", "resize storage that is not resizable")
"""Parts of torch's errors for samples of unequal shape; the second comes from worker processes."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of several parts instead of one tensor.

    `call_with_parts` passes a tuple as positional arguments, and a dict as keyword arguments.
    """

    tensors: tuple[Tensor, ...] | dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def parts(self) -> list[Tensor]:
        """The tensors."""
        return [*(self.tensors.values() if isinstance(self.tensors, dict) else self.tensors)]

    def to(self, device: torch.device) -> Inputs:
        """Return a copy on a device."""
        if isinstance(self.tensors, dict):
            return Inputs({name: part.to(device) for name, part in self.tensors.items()})
        return Inputs(tuple(part.to(device) for part in self.tensors))


def call_with_parts(
    module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Convert `Inputs` to the arguments of a module; a pre-hook of its forward pass.

    A forward function with one parameter gets the tuple or dict itself.
    """
    if len(arguments) != 1 or not isinstance(arguments[0], Inputs):
        return None
    whole = arguments[0].tensors
    positional, named = ((), whole) if isinstance(whole, dict) else (whole, {})
    try:
        inspect.signature(module.forward).bind(*positional, **named)
    except TypeError:
        return (whole,), keywords
    return positional, {**keywords, **named}


def require_single_tensor(inputs: Tensor) -> Tensor:
    """Return inputs unchanged; raises UserError for inputs of several parts, which ranks do not support."""
    given: object = inputs
    if isinstance(given, Inputs):
        raise UserError(
            f"the data set gives inputs of {len(given.parts)} parts, but ranks partition only modules with "
            "one input; give one tensor, or train without a grid"
        )
    return inputs


def is_same(one: Tensor, other: Tensor) -> bool:
    """Return True if the inputs of two batches are equal, in all parts."""
    pairs = zip(parts_of(one), parts_of(other), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def parts_of(inputs: object) -> list[Tensor]:
    """Return the tensors of a batch's inputs."""
    return inputs.parts if isinstance(inputs, Inputs) else [cast(Tensor, inputs)]


def batch_of(item: object, device: torch.device) -> Batch:
    """Return a DataLoader's item as a batch on a device.

    Raises UserError unless the item is (input, target) or (input, target, weight).
    """
    if isinstance(item, tuple | list) and len(item) in (2, 3) and isinstance(item[1], Tensor):
        inputs, targets, weights = _inputs(item[0]), item[1], item[2:]
        if inputs is not None and all(_is_weight(each, len(targets)) for each in weights):
            if any(part.is_meta for part in (*parts_of(inputs), targets)):
                raise UserError(
                    "the data set gives tensors on the device meta, which have no values; use another device"
                )
            for each in weights:
                _check_weights(each)
            given = weights[0].to(device) if weights else None
            return Batch(inputs.to(device), targets.to(device), weights=given)
    raise UserError(
        "a data set must give pairs (input, target) that make two tensors, or (input, target, weight) with "
        f"one number as weight; an input may be a tuple or dict of tensors; this one gives {_kind(item)}"
    )


def part_of_batch(batch: Batch, share: Share) -> Batch:
    """Return a replica's part of a whole batch; raises UserError if tensors have different first axes."""
    if share.count == 1:
        return batch
    assert batch.targets is not None, "a program's batches have targets"
    sizes = {each.shape[0] if each.dim() else 0 for each in (*parts_of(batch.inputs), batch.targets)}
    if len(sizes) > 1 or 0 in sizes:
        raise UserError(
            "replicas divide the first axis of a batch, but inputs and targets have "
            f"{' and '.join(map(str, sorted(sizes)))} samples there; give tensors of one length, or train "
            "without replicas"
        )
    first, stop = share.bounds(len(batch.targets))
    chosen = slice(first, stop) if first < stop else slice(0, 1)
    inputs: object = batch.inputs
    if isinstance(inputs, Inputs):
        whole = inputs.tensors
        part: Any = (
            {name: each[chosen] for name, each in whole.items()}
            if isinstance(whole, dict)
            else tuple(each[chosen] for each in whole)
        )
        inputs = Inputs(part)
    else:
        inputs = batch.inputs[chosen]
    return replace(
        batch,
        inputs=cast(Tensor, inputs),
        targets=batch.targets[chosen],
        weights=None if batch.weights is None else batch.weights[chosen],
        is_idle=first == stop,
    )


def _check_weights(weights: Tensor) -> None:
    """Raise UserError for negative weights, and for integers, which are probably sample indices."""
    if not weights.is_floating_point() and weights.dtype != torch.bool:
        raise UserError(
            f"the third part of a sample is its weight, but is an integer ({weights.dtype}); omit "
            "a sample's index, or give a weight as a float"
        )
    if bool((weights < 0).any()):
        raise UserError(
            f"a sample has the weight {float(weights.min()):g}, so that its loss would be maximised; give "
            "weights of 0 or more"
        )


def _is_weight(given: object, samples: int) -> bool:
    return isinstance(given, Tensor) and given.shape in ((samples,), (samples, 1)) and not given.is_complex()


def weighted(loss: Loss, outputs: Tensor, batch: Batch) -> Tensor:
    """Return the loss of a batch; weights multiply the loss of each sample before the mean.

    The loss of a sample whose targets are all ignored is 0. Weights of classes multiply, too: torch divides
    the loss of one sample by the weight of its class.
    """
    targets = batch.targets
    assert targets is not None, "a supervised run reads labelled data"
    if batch.weights is None:
        return loss(outputs, targets)
    weights = batch.weights.reshape(-1).to(outputs.device)
    counted = torch.ones(len(targets), dtype=torch.bool)
    if is_classes(outputs, targets):
        each = target_weights(loss, targets).reshape(len(targets), -1)
        counted = each.any(1)
        if class_weights(loss) is not None:
            number = counted_mask(loss, targets).reshape(each.shape).sum(1)
            weights = weights * each.sum(1) / number.clamp(min=1)
    losses = torch.stack(
        [
            loss(outputs[i : i + 1], targets[i : i + 1]) if counts else outputs[i].sum() * 0
            for i, counts in enumerate(counted.tolist())
        ]
    )
    return (losses * weights.to(losses.dtype)).mean()


def _inputs(given: object) -> Tensor | None:
    """Return a tensor, or `Inputs` in its place, for the module."""
    if isinstance(given, Tensor):
        return given
    if isinstance(given, Mapping):
        whole: Any = {str(name): part for name, part in given.items()}
    elif isinstance(given, tuple | list):
        whole = tuple(given)
    else:
        return None
    parts = [*whole.values()] if isinstance(whole, dict) else whole
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        return None
    return cast(Tensor, Inputs(whole))


@contextmanager
def collated(samples: Sequence[object], numbers: Sequence[int]) -> Iterator[None]:
    """Replace torch's error by a UserError with the indices of samples that cannot form a batch."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        first = _shape(samples[0])
        for number, sample in zip(numbers, samples, strict=False):
            if _shape(sample) != first:
                raise UserError(
                    f"samples {numbers[0]} and {number} cannot form a batch: one is {first}, the other "
                    f"{_shape(sample)}; give samples of one shape, or a DataLoader whose collate_fn pads them"
                ) from error
        if isinstance(error, TypeError) and "default_collate" in str(error):
            raise UserError(
                f"sample {numbers[0]} cannot form a batch: it is {first}; give pairs (input, target) of "
                "tensors, arrays or numbers"
            ) from error
        raise


@contextmanager
def loaded() -> Iterator[None]:
    """Replace torch's error by a UserError if samples of a DataLoader have different shapes."""
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error) for words in _UNEQUAL):
            raise
        raise UserError(
            "samples of the DataLoader have different shapes and cannot form a batch; give samples of one "
            "shape, or a collate_fn that pads them"
        ) from error


def _shape(sample: object) -> str:
    if isinstance(sample, tuple | list):
        return f"({', '.join(map(_shape, sample[:4]))}{', ...' if len(sample) > 4 else ''})"
    if isinstance(sample, Mapping):
        return f"{{{', '.join(f'{name}: {_shape(part)}' for name, part in [*sample.items()][:4])}}}"
    shape = getattr(sample, "shape", None)
    return type(sample).__name__ if shape is None else f"{type(sample).__name__} of {tuple(shape)}"


def _kind(item: object) -> str:
    if isinstance(item, tuple | list):
        return (
            f"a {type(item).__name__} of {', '.join(type(each).__name__ for each in item[:4]) or 'nothing'}"
        )
    return f"a {type(item).__name__}"

"""Factories: functions that make a module and its data set, named so that other processes can call them.

Knows: how factories are imported, what they return. Does not know: which program names them, how anything is
trained.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cotswold.errors import UserError
from cotswold.training.data.batches import call_with_parts
from cotswold.training.data.user_datasets import data_set, split_samples
from cotswold.training.full_batch.module_batch import TrainArguments, work_of
from cotswold.training.full_batch.objective import ModuleObjective
from cotswold.training.losses import CustomLoss, loss_by_name


def imported(name: str) -> Callable[..., Any]:
    """Return the function named by `package.module:function`; raises UserError if there is none."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise UserError(f"{name!r} names no function; use the form package.module:function")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"{name} cannot be imported ({error}); name a function of a module that Python finds: installed, "
            "or next to the program"
        ) from error
    if not callable(found):
        raise UserError(f"{name} is not a function; name one that returns a module and a data set")
    return found  # type: ignore[no-any-return]  # any callable is accepted


def make(factory: str) -> tuple[Any, Any, Any]:
    """Return module, data set and validation set (or None) of a factory.

    Raises UserError if the factory returns something else.
    """
    made = imported(factory)()
    if not isinstance(made, tuple) or not 2 <= len(made) <= 3:
        raise UserError(f"{factory} must return (module, dataset) or (module, dataset, validation)")
    module, dataset, *more = made
    return module, dataset, more[0] if more else None


def build_objective(
    factory: str, loss: str, validation: float | None, portion: int, seed: int, paths: Sequence[str]
) -> ModuleObjective:
    """Return the objective of a program whose factory this worker calls too.

    ``paths`` is the program's search path for modules.
    """
    sys.path += [each for each in paths if each not in sys.path]
    torch.set_num_threads(1)
    module, dataset, own = make(factory)
    data, given = data_set(dataset), validation if own is None else data_set(own)
    samples, held = split_samples(data, given, portion, seed)
    module.register_forward_pre_hook(call_with_parts, with_kwargs=True)
    function = CustomLoss(imported(loss)) if ":" in loss else loss_by_name(loss)
    return work_of(TrainArguments(module, samples, held, function), portion)

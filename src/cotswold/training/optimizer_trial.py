"""A step of an optimiser on copies of a few parameters, which shows the state that it keeps.

Knows: torch's optimisers. Does not know: checkpoints, what an optimiser computes.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict, defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cotswold.training.callbacks.runner import preserved_random_states

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def after_one_step(optimizer: Optimizer) -> tuple[Optimizer, dict[int, Tensor]] | None:
    """Return a copy of an optimiser after a step with zero gradients, and the parameters of its copies.

    Each group has copies of its smallest parameters, one for each number of dimensions. Returns None if the
    optimiser cannot be copied or does not take such a step; then its state is unknown before training.

    Args:
        optimizer: The optimiser, which stays unchanged.

    Returns:
        The copy, and the original parameter by the id of its copy.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if any(each.grad is not None for each in parameters):  # a wrapped optimiser would use them
        return None
    originals: dict[int, Tensor] = {}
    groups: list[dict[str, Any]] = []
    kept = {id(each): each for each in parameters}
    try:
        for group in optimizer.param_groups:
            smallest = {each.dim(): each for each in sorted(group["params"], key=_size, reverse=True)}
            copies = [each.detach().clone().requires_grad_() for each in smallest.values()]
            for original, each in zip(smallest.values(), copies, strict=True):
                each.grad = torch.zeros_like(each)
                originals[id(each)] = original
            others = {name: value for name, value in group.items() if name != "params"}
            groups.append({"params": copies, **copy.deepcopy(others, dict(kept))})
        own = {name: each for name, each in vars(optimizer).items() if name not in ("param_groups", "state")}
        own |= {name: OrderedDict() for name in _HOOKS} | {"step": None}
        trial = object.__new__(type(optimizer))
        vars(trial).update(copy.deepcopy(own, dict(kept)), param_groups=groups, state=defaultdict(dict))
        del trial.step  # a scheduler binds the step of the original
        with preserved_random_states(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial.step()
    except Exception:  # any error of the optimiser's code on these copies; training shows it
        return None
    return trial, originals


def _size(parameter: Tensor) -> int:
    return parameter.numel()

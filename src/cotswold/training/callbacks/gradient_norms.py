"""A callback that records the norms of gradients.

Knows: the gradients of a module, parts of them on a mesh. Does not know: losses, receivers of events.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cotswold.errors import UserError
from cotswold.training.callbacks.base import Callback, CallbackContext
from cotswold.training.callbacks.intervals import check_interval


class GradientNorms(Callback):
    """Record the Euclidean norms of the gradients that a step used, in an event `gradient_norms`.

    The fields of the event are ``step``, ``norm`` (of all gradients), and ``layer.NAME`` for each layer with
    parameters. Loggers show them as curves.

    Args:
        every: The interval in steps.

    Raises:
        UserError: If ``every`` is not at least 1.
    """

    every_rank = True  # on a mesh, a norm is a sum over ranks
    needs_module = True

    def __init__(self, every: int = 100) -> None:
        self.every = check_interval(every, "GradientNorms")

    def on_step_end(self, context: CallbackContext) -> None:
        """Record the norms of the step.

        Args:
            context: The state of the run.

        Raises:
            UserError: If the step left no gradients.
        """
        if context.module is None or not (context.step % self.every == 0 or context.step == 1):
            return
        squares = squared_norms(context.module)
        if not squares:
            raise UserError(
                "the step left no gradients in the parameters, as a strategy without backward() does; omit "
                "GradientNorms"
            )
        layers = {f"layer.{name or 'module'}": sqrt(each) for name, each in squares.items()}
        context.event("gradient_norms", step=context.step, norm=sqrt(sum(squares.values())), **layers)


@torch.no_grad()
def squared_norms(module: nn.Module) -> dict[str, float]:
    """Return the squared norm of the gradients of each layer with gradients, by name.

    On a mesh all ranks call it together.
    """
    sums: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            layer = name.rpartition(".")[0]
            dtype = torch.promote_types(parameter.grad.dtype, torch.float32)
            norm = torch.linalg.vector_norm(parameter.grad, dtype=dtype)
            square = (norm.full_tensor() if isinstance(norm, DTensor) else norm).square()
            sums[layer] = sums[layer] + square if layer in sums else square
    return {name: float(each) for name, each in sums.items()}

"""A closure of a torch optimiser as an objective.

Knows: parameters, their gradients, a closure. Does not know: methods, how a vector is distributed.

The closure computes at the parameters, so the objective writes a point into them and reads their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from cotswold.errors import UserError
from cotswold.optim.objective import Evaluation
from cotswold.optim.vectors.base import Combine, Command, Dot, Drop, Multiply
from cotswold.optim.vectors.dtensor import DTensorVectors
from cotswold.optim.vectors.local import TensorVectors
from cotswold.optim.vectors.replicated import all_gather_values

Closure = Callable[[], Tensor | float]
StoredVectors = TensorVectors | DTensorVectors


class ClosureObjective:
    """Value and gradient by calling ``closure``, which the caller sets before every step.

    Args:
        vectors: the vectors of the method.
        parameters: the parameters that the closure computes with.
        decays: weight decay of each parameter; the value includes half its square times this factor.
        group: ranks that average the value; None for this rank alone.
    """

    def __init__(
        self,
        vectors: StoredVectors,
        parameters: Sequence[Tensor],
        decays: Sequence[float],
        group: dist.ProcessGroup | None,
    ) -> None:
        self._vectors, self._parameters, self._group = vectors, parameters, group
        self.closure: Closure | None = None
        self._decays = list(decays)

    def part(self, sample_set: str, fraction: float) -> str:
        """Return `sample_set`: a closure has no subsets."""
        return sample_set

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        sample_set: str | None = None,
    ) -> Evaluation:
        """Return the closure's value at a vector, averaged over the group."""
        assert self.closure is not None and gradient is not None
        self._vectors.run(before)
        self.write(at)
        with torch.enable_grad():
            value = self._average_over_group(_loss_value(self.closure()))
        self._read_gradients(self._vectors.make(gradient))
        self._choose_decays()
        if not any(self._decays):
            return Evaluation(value, tuple(self._vectors.run(after)), "all", 1)
        decaying: list[Command] = [
            Multiply("decayed", "decay", at),
            Combine(gradient, ((1.0, gradient), (1.0, "decayed"))),
            Dot("decayed", at),
            Drop("decayed"),
        ]
        square, *dots = self._vectors.run([*decaying, *after])
        return Evaluation(value + square / 2.0, tuple(dots), "all", 1)

    @torch.no_grad()
    def write(self, name: str) -> None:
        """Copy a vector into the parameters."""
        for parameter, part in zip(self._parameters, self._vectors[name], strict=True):
            local = _local(parameter)
            local.copy_(part.view(local.shape))

    @torch.no_grad()
    def read(self, name: str) -> None:
        """Copy the parameters into a vector."""
        for parameter, part in zip(self._parameters, self._vectors.make(name), strict=True):
            part.copy_(_local(parameter).reshape(-1))

    @torch.no_grad()
    def _read_gradients(self, parts: Sequence[Tensor]) -> None:
        if all(parameter.grad is None for parameter in self._parameters):
            raise UserError("the closure left no gradients; call loss.backward() in it")
        for parameter, part in zip(self._parameters, parts, strict=True):
            gradient = parameter.grad
            if gradient is None or not _has_gradient(parameter):
                part.zero_()
                continue
            if gradient.is_sparse:
                raise UserError("gradients must be dense; use Embedding(sparse=False) or the like")
            if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
                gradient = gradient.redistribute(placements=parameter.placements)
            part.copy_(_local(gradient).reshape(-1))

    @torch.no_grad()
    def _choose_decays(self) -> None:
        """Apply weight decay only to parameters that have a gradient, as torch's optimisers do."""
        if any(self._decays):
            decays = zip(self._vectors.make("decay"), self._parameters, self._decays, strict=True)
            for part, parameter, decay in decays:
                part.fill_(decay if _has_gradient(parameter) else 0.0)

    def _average_over_group(self, value: float) -> float:
        """Return the mean over the ranks of the group; the same bits on all."""
        if self._group is None:
            return value
        of_ranks = all_gather_values([value], self._group, _local(self._parameters[0]).device)
        return sum(each for (each,) in of_ranks) / len(of_ranks)


def _has_gradient(parameter: Tensor) -> bool:
    """True if a parameter is not frozen and has a gradient."""
    return parameter.requires_grad and parameter.grad is not None


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _loss_value(loss: Tensor | float) -> float:
    if isinstance(loss, DTensor):
        loss = loss.full_tensor()
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise UserError(f"the closure must return the loss as one number, got shape {tuple(loss.shape)}")
    if not isinstance(loss, Tensor | float | int):
        raise UserError(f"the closure must return the loss, got {type(loss).__name__}")
    return float(loss.detach() if isinstance(loss, Tensor) else loss)

"""Gradients of shared weights, summed over a grid in buckets that begin during the backward pass.

Knows: weights that every rank has whole, of whose gradient it computes a part. Does not know: maps, layers,
replicas.

A layer hands the part to `SharedSums.add` in its backward pass, in place of an all-reduce for which the pass
would wait. When the pass ends, or a bucket is full, one message sums many gradients, which are then added to
those of the weights. Ranks run backward passes in the same order, so their buckets are alike.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.distributed.tensor import DTensor

from cotswold.kernels.operands import accumulation_dtype

BUCKET_BYTES = 25 << 20
"""Size from which a bucket begins; that of torch's DistributedDataParallel."""
FIRST_BYTES = 1 << 20
"""Size from which the first bucket begins: it is ready first, and should not wait for many others."""


class SummingRanks(Protocol):
    """The ranks of a grid (`mesh.Mesh`)."""

    def start_sum(self, values: Tensor, /) -> dist.Work | None:
        """Start a sum over all ranks in place."""


class SumListener(Protocol):
    """Learns when the gradient of a weight is complete."""

    def expect(self, weight: DTensor) -> None:
        """Note that a part of the gradient will be added after its accumulation."""

    def complete(self, weight: DTensor) -> None:
        """Note that the last part so far has been added."""


class SharedSums:
    """The sums of a grid that are under way.

    Args:
        ranks: The ranks of the grid.
    """

    def __init__(self, ranks: SummingRanks) -> None:
        self.listeners: WeakSet[SumListener] = WeakSet()
        self._ranks = ranks
        self._waiting: list[tuple[DTensor, Tensor]] = []
        self._waiting_bytes = 0
        self._begun: list[tuple[list[tuple[DTensor, Tensor]], Tensor, dist.Work | None]] = []
        self._limit = FIRST_BYTES
        self._pending: Counter[int] = Counter()
        self._task = -1

    @staticmethod
    def accepts(weight: DTensor) -> bool:
        """Return True if the running backward pass accumulates the gradient of a weight, and no hook of the
        program needs it before the pass ends.

        Args:
            weight: A parameter that all ranks have whole.
        """
        if torch.is_grad_enabled() or weight._backward_hooks or not weight.is_leaf:
            return False
        hooks = weight._post_accumulate_grad_hooks or {}
        if any(getattr(getattr(one, "__self__", None), "expect", None) is None for one in hooks.values()):
            return False
        try:
            return bool(torch._C._will_engine_execute_node(get_gradient_edge(weight).node))
        except RuntimeError:  # torch.autograd.grad captures the gradient instead
            return False

    def add(self, weight: DTensor, part: Tensor) -> None:
        """Add this rank's part of a weight's gradient.

        Args:
            weight: The weight; `accepts` was True for it in this backward pass.
            part: The part; it is not changed.
        """
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self.flush)
        for each in self.listeners:
            each.expect(weight)
        self._pending[id(weight)] += 1
        self._waiting.append((weight, part))
        self._waiting_bytes += part.nbytes
        if self._waiting_bytes >= self._limit:
            self._begin()
            self._finish(keep=1)
            self._limit = BUCKET_BYTES

    def flush(self) -> None:
        """Begin the last bucket, wait for all, and add the sums to the gradients."""
        self._task = -1
        self._begin()
        self._finish(keep=0)
        self._limit = FIRST_BYTES

    def abandon(self) -> None:
        """Forget the parts of a backward pass that an exception ended; does nothing during a pass."""
        if torch._C._current_graph_task_id() != -1:
            return
        for _, _, work in self._begun:
            if work is not None:
                work.wait()
        self._waiting, self._waiting_bytes, self._begun, self._limit = [], 0, [], FIRST_BYTES
        self._pending.clear()
        self._task = -1

    def _begin(self) -> None:
        """Start one sum for each type and device among the waiting parts."""
        kinds: dict[tuple[torch.dtype, torch.device], list[tuple[DTensor, Tensor]]] = {}
        for weight, part in self._waiting:
            kinds.setdefault((part.dtype, part.device), []).append((weight, part))
        self._waiting, self._waiting_bytes = [], 0
        for (dtype, _), chosen in kinds.items():
            wide = accumulation_dtype(dtype)
            buffer = torch.cat([part.detach().reshape(-1).to(wide) for _, part in chosen])
            self._begun.append((chosen, buffer, self._ranks.start_sum(buffer)))

    @torch.no_grad()
    def _finish(self, keep: int) -> None:
        """Add the sums of all buckets but the last ``keep`` to the gradients."""
        while len(self._begun) > keep:
            chosen, buffer, work = self._begun.pop(0)
            if work is not None:
                work.wait()
            sums = torch.split(buffer, [part.numel() for _, part in chosen])
            for (weight, part), values in zip(chosen, sums, strict=True):
                _accumulate(weight, values.view(part.shape).to(part.dtype))
                self._pending[id(weight)] -= 1
                if not self._pending[id(weight)]:
                    del self._pending[id(weight)]
                    for each in self.listeners:
                        each.complete(weight)


def _accumulate(weight: DTensor, values: Tensor) -> None:
    """Add values to the gradient of a weight that every rank has whole."""
    grad = weight.grad
    if isinstance(grad, DTensor):
        grad.to_local().add_(values)
        return
    weight.grad = DTensor.from_local(
        values.clone(),
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )

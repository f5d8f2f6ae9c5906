"""Gradients averaged over replicas, in buckets that begin during the backward pass.

Knows: parameters in the reverse order of their use, flat buffers. Does not know: modules, losses, how a batch
is divided.

torch's DistributedDataParallel takes no DTensors, and needs a forward pass on every rank; here a replica
without samples only calls `finish`. The sums of a bucket begin once all of its gradients, and those of all
buckets before, are ready; so all replicas send the same messages in the same order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from cotswold.errors import UserError
from cotswold.mesh.modules.parameters import dtensor_like, local_part
from cotswold.mesh.ranks.replicas import ReplicaAxis
from cotswold.mesh.ranks.shared_sums import BUCKET_BYTES, FIRST_BYTES, SharedSums


@dataclass
class _Bucket:
    """Parameters of one type and device, and their gradients in one buffer.

    The buffer ends with one number for each parameter, above 0 if any replica has a gradient of it.
    """

    parameters: list[nn.Parameter]
    buffer: Tensor
    slices: list[slice]
    ready: set[int] = field(default_factory=set)
    work: dist.Work | None = None


class GradientBuckets:
    """Averages the gradients of parameters over replicas.

    Args:
        parameters: The parameters, equal on all replicas; those without ``requires_grad`` are left out.
        replicas: The replicas.
        bucket_bytes: Largest size of a bucket with several parameters.
        shared_sums: The sums of the grid of each replica, which complete some gradients.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        replicas: ReplicaAxis,
        bucket_bytes: int = BUCKET_BYTES,
        shared_sums: SharedSums | None = None,
    ) -> None:
        self.parameters = list(parameters)
        self._replicas, self._bucket_bytes = replicas, bucket_bytes
        self._buckets: list[_Bucket] = []
        self._places: dict[int, tuple[_Bucket, int]] = {}
        self._hooks: list[RemovableHandle] = []
        self._learnt: list[int] = []
        self._next = 0
        self._is_queued = False
        self._is_paused = False
        self._expected: set[int] = set()
        """Parameters (by id) of which a part of the gradient follows after its accumulation."""
        self._arrived: set[int] = set()
        """The parameters whose gradient has been accumulated."""
        self._shared_sums = shared_sums
        if shared_sums is not None:
            shared_sums.listeners.add(self)
        self.refresh()

    def __deepcopy__(self, memo: dict[int, Any]) -> GradientBuckets:
        """Return buckets of the copied parameters."""
        own = copy.deepcopy(self.parameters, memo)
        return GradientBuckets(own, self._replicas, self._bucket_bytes, self._shared_sums)

    def refresh(self) -> None:
        """Build the buckets anew if parameters were frozen or released since the last call.

        Forgets the gradients of a backward pass that an exception ended; does nothing during a pass.
        """
        if torch._C._current_graph_task_id() != -1:
            return
        self._is_queued, self._next = False, 0
        self._expected.clear()
        self._arrived.clear()
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()
            bucket.work = None
            bucket.ready.clear()
        learnt = [each for each in self.parameters if each.requires_grad]
        if [id(each) for each in learnt] == self._learnt:
            return
        self.remove()
        self._learnt = [id(each) for each in learnt]
        for chosen in _grouped(reversed(learnt), self._bucket_bytes):
            sizes = [local_part(each).numel() for each in chosen]
            first = local_part(chosen[0])
            buffer = torch.zeros(sum(sizes) + len(chosen), dtype=first.dtype, device=first.device)
            stops = [sum(sizes[: at + 1]) for at in range(len(sizes))]
            bucket = _Bucket(
                chosen, buffer, [slice(stop - n, stop) for n, stop in zip(sizes, stops, strict=True)]
            )
            self._buckets.append(bucket)
            for at, each in enumerate(chosen):
                self._places[id(each)] = bucket, at
                hook = each.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]  # torch leaves it untyped
                self._hooks.append(hook)

    def remove(self) -> None:
        """Remove all hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._buckets, self._places, self._learnt = [], [], {}, []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Only accumulate gradients on this replica, for a `with` block around a backward pass.

        The next backward pass outside of the block averages the accumulated gradients.
        """
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def finish_after(self, output: Tensor) -> None:
        """Call `finish` at the end of the backward pass that begins at this output.

        Args:
            output: An output of the module.
        """
        if output.requires_grad:
            output.register_hook(self._queue)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _queue(self, grad: Tensor) -> None:
        if self._is_queued or self._is_paused:
            return
        self._is_queued = True
        torch.autograd.Variable._execution_engine.queue_callback(
            self.finish
        )  # as torch's DistributedDataParallel does

    def _accumulated(self, parameter: Tensor) -> None:
        if id(parameter) in self._expected:
            self._arrived.add(id(parameter))
        else:
            self._mark_ready(parameter)

    def expect(self, weight: Tensor) -> None:
        """Wait for `complete` before the gradient of a parameter is averaged.

        Args:
            weight: A parameter whose gradient is summed over the grid.
        """
        if id(weight) in self._places:
            self._expected.add(id(weight))

    def complete(self, weight: Tensor) -> None:
        """Average the gradient of a parameter, unless it has yet to be accumulated.

        Args:
            weight: A parameter for which `expect` was called.
        """
        self._expected.discard(id(weight))
        if id(weight) in self._arrived:
            self._arrived.discard(id(weight))
            self._mark_ready(weight)

    def _mark_ready(self, parameter: Tensor) -> None:
        """Put the gradient of a parameter into its bucket, and begin all buckets that are complete."""
        if self._is_paused or id(parameter) not in self._places:
            return
        bucket, at = self._places[id(parameter)]
        if bucket.work is not None:
            raise UserError(
                f"a parameter of shape {tuple(parameter.shape)} got another gradient in the same backward "
                "pass, after the replicas had begun to average it; use torch.utils.checkpoint with "
                "use_reentrant=False, or no_sync() around all backward passes of a step but the last"
            )
        _fill(bucket, at, self._replicas.count)
        while self._next < len(self._buckets):
            first = self._buckets[self._next]
            if len(first.ready) < len(first.parameters):
                return
            self._begin(first)

    def _begin(self, bucket: _Bucket) -> None:
        bucket.work = self._replicas.start_sum(bucket.buffer)
        self._next += 1

    def finish(self) -> None:
        """Begin the remaining buckets, and replace every gradient by the average over replicas.

        Parameters without a gradient count as zero, unless no replica has one. Call this after the backward
        pass, or in its place on a replica without samples; all replicas call it equally often.
        """
        self._is_queued = False
        if self._shared_sums is not None:
            self._shared_sums.flush()
        self._expected.clear()
        self._arrived.clear()
        for bucket in self._buckets[self._next :]:
            for at in range(len(bucket.parameters)):
                if at not in bucket.ready:
                    _fill(bucket, at, self._replicas.count)
            self._begin(bucket)
        self._next = 0
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()
            _spread(bucket)
            bucket.ready.clear()
            bucket.work = None


def _grouped(parameters: Iterable[nn.Parameter], most_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Yield consecutive parameters of one type and device, up to a size."""
    chosen: list[nn.Parameter] = []
    size, most, kind = 0, min(FIRST_BYTES, most_bytes), None
    for each in parameters:
        part = local_part(each)
        own = part.dtype, part.device
        if chosen and (own != kind or size + part.nbytes > most):
            yield chosen
            chosen, size, most = [], 0, most_bytes
        kind = own
        chosen.append(each)
        size += part.nbytes
    if chosen:
        yield chosen


def _fill(bucket: _Bucket, at: int, count: int) -> None:
    """Copy a gradient, divided by the number of replicas, into the buffer."""
    grad, place = bucket.parameters[at].grad, bucket.slices[at]
    flags = bucket.buffer[-len(bucket.parameters) :]
    if grad is None:
        bucket.buffer[place].zero_()
        flags[at] = 0
    else:
        part = local_part(grad)
        dense = part.to_dense() if part.layout is not torch.strided else part
        torch.div(dense.reshape(-1), count, out=bucket.buffer[place])
        flags[at] = 1
    bucket.ready.add(at)


def _spread(bucket: _Bucket) -> None:
    """Copy the averages back into the gradients."""
    used = (bucket.buffer[-len(bucket.parameters) :] > 0).tolist()
    for parameter, place, is_used in zip(bucket.parameters, bucket.slices, used, strict=True):
        if not is_used:
            continue
        average = bucket.buffer[place].view(local_part(parameter).shape)
        if parameter.grad is None or parameter.grad.layout is not torch.strided:
            own = torch.empty_like(local_part(parameter), memory_format=torch.preserve_format).detach()
            parameter.grad = _as(parameter, own)
        local_part(parameter.grad).copy_(average)


def _as(parameter: Tensor, part: Tensor) -> Tensor:
    """Return this rank's part of a gradient in the form of its parameter."""
    return dtensor_like(parameter, part) if isinstance(parameter, DTensor) else part

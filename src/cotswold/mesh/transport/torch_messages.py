"""The transport over torch.distributed: point-to-point messages of a process group, on any device.

Knows: torch's requests, its tags, buffers for non-contiguous tensors. Does not know: maps, plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from cotswold.mesh.transport.buffers import BufferPool
from cotswold.mesh.transport.transport import Expected

TAGS = 1 << 10
"""Number of exchanges after which tags of torch.distributed are reused."""
_SIZES = 1 << 20
"""Number of sizes that tags distinguish: a message of an unexpected size never matches."""


@dataclass(frozen=True, eq=False)
class _Request:
    """A message in flight, in ``values``; ``buffer`` is pooled memory to return."""

    values: Tensor
    works: Sequence[dist.Work]
    buffer: Tensor | None


@dataclass(frozen=True, eq=False)
class _Open:
    """Requests of an exchange, by the other rank."""

    incoming: dict[int, _Request] = field(default_factory=dict)
    outgoing: dict[int, _Request] = field(default_factory=dict)


class PointToPoint:
    """Messages to the ``members`` (ranks of the job) of a group.

    A message of an unexpected size is never received; its receiver waits until the group's timeout.
    """

    def __init__(self, group: dist.ProcessGroup | None, members: Sequence[int], buffers: BufferPool) -> None:
        self._group, self._members, self._buffers = group, members, buffers
        self._open: dict[int, _Open] = {}
        self._abandoned: dict[int, _Open] = {}
        """Requests that torch cannot cancel: they hold buffers until their messages arrive."""

    def send(self, tag: int, outgoing: Mapping[int, Tensor], expected: Mapping[int, Expected]) -> None:
        """See `Transport`."""
        messages: list[dist.P2POp] = []
        requests: list[tuple[int, Tensor, Tensor | None]] = []
        for source, one in expected.items():
            buffer = None if one.in_place else self._buffers.take(one.destination.numel(), one.destination)
            values = one.destination if buffer is None else buffer
            requests.append((source, values.view(one.destination.shape), buffer))
            messages.append(self._message(dist.irecv, values, source, tag))
        for target, view in outgoing.items():
            buffer = None if view.is_contiguous() else self._buffers.take(view.numel(), view)
            if buffer is not None:
                buffer.view(view.shape).copy_(view)
            values = view if buffer is None else buffer
            requests.append((target, values, buffer))
            messages.append(self._message(dist.isend, values, target, tag))
        # sent as one batch because NCCL pairs them; some backends then return one request for all messages
        works = dist.batch_isend_irecv(messages) if messages else []
        each = [[work] for work in works] if len(works) == len(messages) else [works] * len(messages)
        found = self._open[tag] = _Open()
        for number, ((other, values, buffer), its) in enumerate(zip(requests, each, strict=True)):
            side = found.incoming if number < len(expected) else found.outgoing
            side[other] = _Request(values, its, buffer)

    def receive(self, tag: int, source: int) -> Tensor:
        """See `Transport`."""
        request = self._open[tag].incoming[source]
        _wait(request)
        self._reclaim(tag, source)
        return request.values

    def release(self, tag: int, source: int) -> None:
        """See `Transport`."""
        self._end(self._open[tag].incoming.pop(source))

    def finish(self, tag: int) -> None:
        """See `Transport`; waits until sent messages have left."""
        found = self._open[tag]
        for requests in (found.incoming, found.outgoing):
            while requests:
                other, request = next(iter(requests.items()))
                _wait(request)
                self._end(requests.pop(other))
        del self._open[tag]

    def abandon(self, tag: int) -> None:
        """See `Transport`; buffers are freed when a later message of the same rank was received."""
        found = self._open.pop(tag, None)
        if found is not None and (found.incoming or found.outgoing):
            self._abandoned[tag] = found

    def _reclaim(self, tag: int, other: int) -> None:
        """Free the buffers of abandoned exchanges with a rank that has begun a later one."""
        for number in [one for one in self._abandoned if one < tag]:
            found = self._abandoned[number]
            for requests in (found.incoming, found.outgoing):
                if other in requests:
                    _wait(requests[other])
                    self._end(requests.pop(other))
            if not found.incoming and not found.outgoing:
                del self._abandoned[number]

    def _end(self, request: _Request) -> None:
        if request.buffer is not None:
            self._buffers.release(request.buffer)

    def _message(self, verb: Callable[..., Any], values: Tensor, other: int, tag: int) -> dist.P2POp:
        size = values.numel() * values.element_size()
        member = self._members[other]
        return dist.P2POp(verb, values, member, self._group, tag % TAGS * _SIZES + size % _SIZES)


def _wait(request: _Request) -> None:
    for work in request.works:
        work.wait()

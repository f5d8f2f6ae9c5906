"""Exchanges: messages by which distributed maps are fetched, and sums of what ranks wrote in the same place.

Knows: plans, how a box of a map is packed, point-to-point messages. Does not know: what the maps are for.
Source: Coates et al. 2013, section 4.2. A pair of ranks has one message an exchange at most.

Maps are ``(image, channel, y, x)``; a message carries ``[y][x][channel][image]``, so that whole rows of a map
whose images are last are sent and received in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import Box, ExchangePlan, MapShape
from cotswold.mesh.ranks import Mesh
from cotswold.ops.layout import empty_map


def _physical(x: Tensor, box: Box, origin: Box) -> Tensor:
    """A box of a map that lies on the box ``origin``, as ``(y, x, channel, image)``, a view."""
    rows, columns = box.within(origin).slices
    return x.permute(2, 3, 1, 0)[rows, columns]


@dataclass(frozen=True, eq=False)
class _Incoming:
    """A message that is on its way into a buffer, and where in the window it belongs."""

    place: Tensor
    buffer: Tensor
    staged: bool


class Pending:
    """An exchange under way. ``window`` has what this rank wrote itself; `finish` adds what others wrote."""

    def __init__(
        self,
        mesh: Mesh,
        window: Tensor,
        works: Sequence[dist.Work] = (),
        incoming: Sequence[_Incoming] = (),
        outgoing: int = 0,
        lent: Sequence[Tensor] = (),
        summing: bool = False,
    ) -> None:
        self.window = window
        self._mesh, self._works, self._incoming = mesh, works, incoming
        # some backends answer once for all messages
        self._apart = len(works) == len(incoming) + outgoing
        self._lent, self._summing = lent, summing

    def finish(self) -> Tensor:
        """Wait for every message; the whole window. What has come is unpacked while the rest travels."""
        for number, message in enumerate(self._incoming):
            for work in self._works[number : number + 1] if self._apart else self._works:
                work.wait()
            if message.staged:
                arrived = message.buffer.view(message.place.shape)
                if self._summing:
                    message.place.add_(arrived)
                else:
                    message.place.copy_(arrived)
                self._mesh.buffers.give(message.buffer)
        for work in self._works[len(self._incoming) if self._apart else 0 :]:
            work.wait()
        for buffer in self._lent:
            self._mesh.buffers.give(buffer)
        self._works, self._incoming, self._lent = (), (), ()
        return self.window


class Exchange:
    """A plan between the ranks of a mesh; every rank has the same one, and starts exchanges in one order."""

    def __init__(self, mesh: Mesh, plan: ExchangePlan) -> None:
        if plan.ranks != mesh.size:
            raise GeometryError(f"the plan is for {plan.ranks} ranks, the mesh has {mesh.size}")
        self.mesh, self.plan = mesh, plan
        rank = mesh.rank
        self.part, self.window = plan.writes[rank], plan.reads[rank]
        self._sends, self._receives = plan.sends(rank), plan.receives(rank)
        self._kept = plan.kept(rank)
        arriving = [transfer.box for transfer in self._receives]
        written = [*arriving, self._kept]
        self._summing = any(
            a.intersect(b).size for at, a in enumerate(written) for b in written[:at] if a.size and b.size
        )
        self._covered = not self._summing and sum(box.size for box in written) == self.window.size
        self._adjoint: Exchange | None = None

    @property
    def adjoint(self) -> Exchange:
        """The exchange that goes the other way: its sums are the gradient of this one."""
        if self._adjoint is None:
            self._adjoint = Exchange(self.mesh, self.plan.adjoint)
            self._adjoint._adjoint = self
        return self._adjoint

    def start(self, part: Tensor, into: Tensor | None = None) -> Pending:
        """Send what others read of this rank's part ``(image, channel, *part)``; nobody waits yet.

        What is sent must not be changed before the exchange is finished. ``into`` is a window in whose memory
        the part lies in its place (or the window in that of the part): nothing is copied by this rank to
        itself, and what lies there when the exchange is finished is what others' messages are added to.
        """
        if tuple(part.shape[2:]) != self.part.shape:
            raise GeometryError(
                f"rank {self.mesh.rank} has the part {self.part.shape} of a map, not {tuple(part.shape[2:])}"
            )
        images, channels = part.shape[:2]
        window = self._begun(part) if into is None else into
        tag = self.mesh.next_tag()
        self.mesh.count(self.plan.points * images * channels * part.element_size())
        incoming = [self._awaited(window, transfer.box, images * channels) for transfer in self._receives]
        outgoing, lent = self._packed(part, images * channels)
        messages = [
            dist.P2POp(dist.irecv, message.buffer, self.mesh.member(transfer.source), self.mesh.group, tag)
            for transfer, message in zip(self._receives, incoming, strict=True)
        ] + [
            dist.P2POp(dist.isend, buffer, self.mesh.member(transfer.target), self.mesh.group, tag)
            for transfer, buffer in zip(self._sends, outgoing, strict=True)
        ]
        works = dist.batch_isend_irecv(messages) if messages else []
        return Pending(self.mesh, window, works, incoming, len(outgoing), lent, self._summing)

    def __call__(self, part: Tensor) -> Tensor:
        """The window ``(image, channel, *window)`` of this rank; differentiable any number of times."""
        out: Tensor = _Exchanged.apply(part, self)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return out

    def _begun(self, part: Tensor) -> Tensor:
        """A window with what this rank itself wrote."""
        if self.part == self.window and not self._receives:
            return part
        window = _empty(part, self.window)
        if not self._covered:
            window.zero_()
        if self._kept.size:
            _physical(window, self._kept, self.window).copy_(_physical(part, self._kept, self.part))
        return window

    def _awaited(self, window: Tensor, box: Box, values: int) -> _Incoming:
        place = _physical(window, box, self.window)
        if not self._summing and place.is_contiguous():
            return _Incoming(place, place, staged=False)
        return _Incoming(place, self.mesh.buffers.take(box.size * values, window), staged=True)

    def _packed(self, part: Tensor, values: int) -> tuple[list[Tensor], list[Tensor]]:
        """Messages to send, and those of them that are buffers of ours."""
        outgoing, lent = [], []
        for transfer in self._sends:
            view = _physical(part, transfer.box, self.part)
            if not view.is_contiguous():
                buffer = self.mesh.buffers.take(transfer.box.size * values, part)
                buffer.view(view.shape).copy_(view)
                lent.append(buffer)
                view = buffer
            outgoing.append(view)
        return outgoing, lent


def _empty(like: Tensor, box: Box) -> Tensor:
    """A map of any values on another box, as many images and channels."""
    (images, channels), (height, width) = like.shape[:2], box.shape
    if 0 in (channels, height, width):
        return like.new_empty((images, channels, height, width))
    return empty_map(like, images, MapShape(channels, height, width))


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        own = part.detach()
        window = exchange.start(own).finish()
        return part.view_as(part) if window is own else window

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.adjoint(grad), None

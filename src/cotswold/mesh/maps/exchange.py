"""Exchanges: messages by which distributed maps are fetched, and sums of what ranks wrote in the same place.

Knows: plans, where a box lies in a map. Does not know: how messages travel (`transport`), what the maps are
for. Source: Coates et al. 2013, section 4.2. A pair of ranks has one message an exchange at most.

Maps are ``(image, channel, y, x)``; a message carries ``[y][x][channel][image]``, so that whole rows of a map
whose images are last are sent and received in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import Box, ExchangePlan, MapShape
from cotswold.geometry.box import NOTHING
from cotswold.mesh.maps.crop import crop
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.ranks.precision import wide_type
from cotswold.mesh.transport.transport import Expected, Transport
from cotswold.mesh.transport.under_way import UnderWay
from cotswold.ops.layout import empty_map


def part_of_map(x: Tensor, box: Box, origin: Box) -> Tensor:
    """A box of a map that lies on the box ``origin``, as ``(y, x, channel, image)``, a view."""
    return crop(x, box, origin).permute(2, 3, 1, 0)


@dataclass(frozen=True, eq=False)
class _Incoming:
    """A message that is to come: where it belongs in the plane, and in memory; who brings it."""

    box: Box
    destination: Tensor
    source: int
    transport: Transport


class Pending:
    """An exchange under way. ``window`` has what this rank wrote itself; `finish` adds what others wrote.

    One that is not finished (an exception came between) is abandoned once nobody holds it any more.
    """

    def __init__(
        self,
        window: Tensor,
        box: Box = NOTHING,
        under_way: UnderWay | None = None,
        incoming: Sequence[_Incoming] = (),
        summing: bool = False,
    ) -> None:
        self.window, self._box, self._under_way = window, box, under_way
        self._incoming, self._summing = incoming, summing

    def finish(self) -> Tensor:
        """Wait for every message; the whole window. What has come is unpacked while the rest travels.

        Sums are taken in the plan's order, whatever comes first; of short numbers in float32.
        """
        try:
            self._unpack()
            if self._under_way is not None:
                self._under_way.finish()
        except BaseException:
            self.abandon()
            raise
        self._under_way = None
        return self.window

    def abandon(self) -> None:
        """Give up: what others sent is dropped, memory for it is freed, and what was sent still arrives."""
        under_way, self._under_way, self._incoming = self._under_way, None, ()
        if under_way is not None:
            under_way.abandon()

    def _unpack(self) -> None:
        tag = 0 if self._under_way is None else self._under_way.tag
        wide = wide_type(self.window.dtype)
        total = self.window.to(wide) if self._summing and self._incoming else self.window
        for message in self._incoming:
            values = message.transport.receive(tag, message.source)
            if self._summing:
                part_of_map(total, message.box, self._box).add_(values)
            elif values.data_ptr() != message.destination.data_ptr():
                message.destination.copy_(values)
            message.transport.release(tag, message.source)
        if total is not self.window:
            self.window.copy_(total)
        self._incoming = ()

    def __del__(self) -> None:
        if self._under_way is not None:
            self._under_way.forget()


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
        if into is not None and tuple(into.shape) != (images, channels, *self.window.shape):
            raise GeometryError(
                f"rank {self.mesh.rank} has a window {tuple(into.shape)}, not "
                f"{(images, channels, *self.window.shape)}"
            )
        self.mesh.abandon_forgotten()
        window = self._begun(part) if into is None else into
        tag = self.mesh.next_tag()
        point_bytes = images * channels * part.element_size()
        self.mesh.count(self.plan.points * point_bytes)
        if not self.plan.points:
            return Pending(window)
        routes = self.mesh.routes(part.device)
        messages: dict[Transport, tuple[dict[int, Tensor], dict[int, Expected]]] = {}
        for one in self._sends:
            transport = routes.transport(one.target, one.box.size * point_bytes)
            outgoing, _ = messages.setdefault(transport, ({}, {}))
            outgoing[one.target] = part_of_map(part, one.box, self.part)
        incoming = []
        for one in self._receives:
            transport = routes.transport(one.source, one.box.size * point_bytes)
            _, expected = messages.setdefault(transport, ({}, {}))
            room = part_of_map(window, one.box, self.window)
            expected[one.source] = Expected(room, not self._summing and room.is_contiguous())
            incoming.append(_Incoming(one.box, room, one.source, transport))
        under_way = UnderWay(tag, [*messages], self.mesh.forgotten)
        pending = Pending(window, self.window, under_way, incoming, self._summing)
        for transport, (outgoing, expected) in messages.items():
            transport.send(tag, outgoing, expected)
        return pending

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
            part_of_map(window, self._kept, self.window).copy_(part_of_map(part, self._kept, self.part))
        return window


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

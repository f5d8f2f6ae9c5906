"""Halo exchanges of distributed maps, and their adjoints, which sum what several ranks wrote.

Knows: plans, the place of a box in a map. Does not know: how messages travel (`transport`), the use of the
maps. Source: Coates et al. 2013, section 4.2. A pair of ranks has at most one message per exchange.

Maps are ``(image, channel, y, x)``; a message is ``[y][x][channel][image]``. So whole rows of a map in
channels-last order with the images innermost are sent and received in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import Box, ExchangePlan, MapShape
from cotswold.geometry.box import EMPTY_BOX
from cotswold.kernels.operands import accumulation_dtype, map_strides
from cotswold.mesh.maps.crop import crop
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.transport.in_flight import InFlightExchange
from cotswold.mesh.transport.transport import Expected, Transport
from cotswold.ops.memory_format import empty_map


def part_of_map(x: Tensor, box: Box, origin: Box) -> Tensor:
    """Crop a map that covers the box ``origin`` to ``box``, as a view ``(y, x, channel, image)``."""
    return crop(x, box, origin).permute(2, 3, 1, 0)


@dataclass(frozen=True, eq=False)
class _Incoming:
    """An expected message: its box in the plane, its place in memory, its sender."""

    box: Box
    destination: Tensor
    source: int
    transport: Transport


class ExchangeHandle:
    """A started exchange.

    `finish` completes it. If an exception prevents `finish`, the exchange is abandoned when this object is
    deleted.

    Args:
        window: This rank's window ``(image, channel, y, x)``, with the values that this rank wrote itself.
        box: Box (y, x) of the window in the plane.
        under_way: The messages in flight; None without any.
        incoming: The expected messages.
        summing: True if the values of several ranks are added.
    """

    def __init__(
        self,
        window: Tensor,
        box: Box = EMPTY_BOX,
        under_way: InFlightExchange | None = None,
        incoming: Sequence[_Incoming] = (),
        summing: bool = False,
    ) -> None:
        self.window, self._box, self._in_flight = window, box, under_way
        self._incoming, self._summing = incoming, summing

    def finish(self) -> Tensor:
        """Wait for all messages, and unpack each as soon as it can be while others are in flight.

        Sums are taken in the plan's order, regardless of the order of arrival; of 16-bit floats in float32.

        Returns:
            The complete window ``(image, channel, y, x)`` of this rank.
        """
        try:
            self._unpack()
            if self._in_flight is not None:
                self._in_flight.finish()
        except BaseException:
            self.abandon()
            raise
        self._in_flight = None
        return self.window

    def abandon(self) -> None:
        """Abandon the exchange: drop incoming messages and free their memory; sent messages still arrive."""
        under_way, self._in_flight, self._incoming = self._in_flight, None, ()
        if under_way is not None:
            under_way.abandon()

    def _unpack(self) -> None:
        tag = 0 if self._in_flight is None else self._in_flight.tag
        wide = accumulation_dtype(self.window.dtype)
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
        if self._in_flight is not None:
            self._in_flight.forget()


class Exchange:
    """A plan for halo exchanges between the ranks of a mesh.

    Every rank has the same plan, and starts exchanges in the same order.

    Args:
        mesh: The ranks.
        plan: Boxes that each rank writes and reads.

    Attributes:
        part: Box (y, x) of the plane that this rank writes.
        window: Box (y, x) of the plane that this rank reads.

    Raises:
        GeometryError: The plan is for another number of ranks.
    """

    def __init__(self, mesh: Mesh, plan: ExchangePlan) -> None:
        if plan.ranks != mesh.size:
            raise GeometryError(f"the plan is for {plan.ranks} ranks, but the mesh has {mesh.size}")
        self.mesh, self.plan = mesh, plan
        rank = mesh.rank
        self.part, self.window = plan.writes[rank], plan.reads[rank]
        self._sends, self._receives = plan.sends(rank), plan.receives(rank)
        self._kept = plan.local_box(rank)
        arriving = [transfer.box for transfer in self._receives]
        written = [*arriving, self._kept]
        self._summing = any(
            a.intersect(b).size for at, a in enumerate(written) for b in written[:at] if a.size and b.size
        )
        self._covered = not self._summing and sum(box.size for box in written) == self.window.size
        self._adjoint: Exchange | None = None

    @property
    def adjoint(self) -> Exchange:
        """The reverse exchange, whose sums are the gradient of this one."""
        if self._adjoint is None:
            self._adjoint = Exchange(self.mesh, self.plan.adjoint)
            self._adjoint._adjoint = self
        return self._adjoint

    def start(self, part: Tensor, into: Tensor | None = None) -> ExchangeHandle:
        """Send the values of this rank's part that others read, and return without waiting.

        The sent values must not change before the exchange is finished.

        Args:
            part: This rank's part ``(image, channel, *part)``.
            into: Window ``(image, channel, *window)`` whose memory contains the part at its place (or the
                reverse). Then this rank copies nothing to itself, and received values are added to the
                window's values at the time of `finish`.

        Returns:
            The exchange in flight; its `ExchangeHandle.finish` returns the window.

        Raises:
            GeometryError: A tensor does not have the shape that the plan requires.
        """
        if tuple(part.shape[2:]) != self.part.shape:
            raise GeometryError(
                f"rank {self.mesh.rank} needs a part of shape {self.part.shape} of a map, got "
                f"{tuple(part.shape[2:])}"
            )
        images, channels = part.shape[:2]
        if into is not None and tuple(into.shape) != (images, channels, *self.window.shape):
            raise GeometryError(
                f"rank {self.mesh.rank} got a window of shape {tuple(into.shape)}, but needs "
                f"{(images, channels, *self.window.shape)}"
            )
        self.mesh.abandon_forgotten()
        window = self._begun(part) if into is None else into
        tag = self.mesh.next_tag()
        point_bytes = images * channels * part.element_size()
        self.mesh.count(self.plan.points * point_bytes)
        if not self.plan.points:
            return ExchangeHandle(window)
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
        under_way = InFlightExchange(tag, [*messages], self.mesh.forgotten)
        pending = ExchangeHandle(window, self.window, under_way, incoming, self._summing)
        for transport, (outgoing, expected) in messages.items():
            transport.send(tag, outgoing, expected)
        return pending

    def __call__(self, part: Tensor) -> Tensor:
        """Return this rank's window ``(image, channel, *window)``; differentiable any number of times.

        Args:
            part: This rank's part ``(image, channel, *part)``.
        """
        out: Tensor = _Exchanged.apply(part, self)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return out

    def _begun(self, part: Tensor) -> Tensor:
        """Return a window that contains what this rank itself wrote."""
        if self.part == self.window and not self._receives:
            return part
        window = empty_window(part, self.window)
        if not self._covered:
            window.zero_()
        if self._kept.size:
            part_of_map(window, self._kept, self.window).copy_(part_of_map(part, self._kept, self.part))
        return window


def empty_window(like: Tensor, box: Box) -> Tensor:
    """Return an uninitialised map on another box, with as many images and channels, in the same memory order.

    Functions of torch copy a map whose images are last, which takes as long as some convolutions.

    Args:
        like: Another map ``(image, channel, y, x)``.
        box: Box (y, x) of the new one.
    """
    (images, channels), (height, width) = like.shape[:2], box.shape
    if 0 in (channels, height, width):
        return like.new_empty((images, channels, height, width))
    if not like.numel() or map_strides(like) is not None:
        return empty_map(like, images, MapShape(channels, height, width))
    is_last = like.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if is_last else torch.contiguous_format
    shape = images, channels, height, width
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=order)


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

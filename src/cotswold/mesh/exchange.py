"""Exchanges: messages by which distributed maps are fetched, and sums of what ranks wrote in the same place.

Knows: plans, how a box of a map is packed, point-to-point messages. Does not know: what the maps are for.
Source: Coates et al. 2013, section 4.2. A pair of ranks has one message an exchange at most.

Maps are ``(image, channel, y, x)``; a message carries ``[y][x][channel][image]``, so that whole rows of a map
whose images are last are sent and received in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import Box, ExchangePlan, MapShape, Transfer
from cotswold.geometry.box import NOTHING
from cotswold.mesh.buffers import Buffers
from cotswold.mesh.channels import Channel
from cotswold.mesh.precision import wide_type
from cotswold.mesh.ranks import Mesh
from cotswold.ops.layout import empty_map


def _physical(x: Tensor, box: Box, origin: Box) -> Tensor:
    """A box of a map that lies on the box ``origin``, as ``(y, x, channel, image)``, a view."""
    rows, columns = box.within(origin).slices
    return x.permute(2, 3, 1, 0)[rows, columns]


TAGS = 1 << 10
"""Tags of torch.distributed are used again after so many exchanges."""
_SIZES = 1 << 20
"""Sizes that tags tell apart: a message of another size than is expected is never taken for one."""


class Arriving(Protocol):
    """A message under way, of the values of a place."""

    def values(self, place: Tensor) -> Tensor:
        """What it brings, shaped as its place (or lying there already); waits for it."""
        ...

    def release(self) -> None:
        """Nobody reads the values any more."""
        ...


@dataclass(frozen=True, eq=False)
class _Received:
    """A message of torch.distributed, into a buffer of ours or into its place."""

    buffer: Tensor
    works: Sequence[dist.Work]
    lender: Buffers | None

    def values(self, place: Tensor) -> Tensor:
        for work in self.works:
            work.wait()
        return self.buffer.view(place.shape)

    def release(self) -> None:
        if self.lender is not None:
            self.lender.give(self.buffer)


@dataclass(frozen=True, eq=False)
class _Near:
    """A message of a rank on this host."""

    channel: Channel
    tag: int

    def values(self, place: Tensor) -> Tensor:
        return self.channel.receive(self.tag, place)

    def release(self) -> None:
        self.channel.release(self.tag)


class Pending:
    """An exchange under way. ``window`` has what this rank wrote itself; `finish` adds what others wrote."""

    def __init__(
        self,
        window: Tensor,
        box: Box = NOTHING,
        incoming: Sequence[tuple[Box, Tensor, Arriving]] = (),
        settle: Sequence[Callable[[], object]] = (),
        summing: bool = False,
    ) -> None:
        self.window, self._box = window, box
        self._incoming, self._settle, self._summing = incoming, settle, summing

    def finish(self) -> Tensor:
        """Wait for every message; the whole window. What has come is unpacked while the rest travels.

        Sums are taken in the plan's order, whatever comes first; of short numbers in float32.
        """
        wide = wide_type(self.window.dtype)
        total = self.window.to(wide) if self._summing and self._incoming else self.window
        for box, place, message in self._incoming:
            values = message.values(place)
            if self._summing:
                _physical(total, box, self._box).add_(values)
            elif values.data_ptr() != place.data_ptr():
                place.copy_(values)
            message.release()
        if total is not self.window:
            self.window.copy_(total)
        for settle in self._settle:
            settle()
        self._incoming, self._settle = (), ()
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
        if into is not None and tuple(into.shape) != (images, channels, *self.window.shape):
            raise GeometryError(
                f"rank {self.mesh.rank} has a window {tuple(into.shape)}, not "
                f"{(images, channels, *self.window.shape)}"
            )
        window = self._begun(part) if into is None else into
        tag = self.mesh.next_tag()
        self.mesh.count(self.plan.points * images * channels * part.element_size())
        near = self.mesh.channels if part.device.type == "cpu" and self.plan.points else {}
        settle: list[Callable[[], object]] = []
        far = []
        for transfer in self._sends:
            view = _physical(part, transfer.box, self.part)
            if transfer.target in near:
                channel = near[transfer.target]
                channel.send(tag, view)
                settle.append(partial(channel.settle, tag))
            else:
                far.append((transfer, view))
        incoming, works = self._posted(window, far, near, tag)
        return Pending(window, self.window, incoming, [*settle, *works], self._summing)

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

    def _posted(
        self, window: Tensor, far: Sequence[tuple[Transfer, Tensor]], near: Mapping[int, Channel], tag: int
    ) -> tuple[list[tuple[Box, Tensor, Arriving]], list[Callable[[], object]]]:
        """Every message that is to come, in the plan's order; and what is to be done when all have come.

        Messages from and to ranks that are not near begin to travel.
        """
        buffers, lent, ready = self.mesh.buffers, list[Callable[[], object]](), dict[int, _Received]()
        places = {one.source: _physical(window, one.box, self.window) for one in self._receives}
        into = {source: self._room(place) for source, place in places.items() if source not in near}
        messages = [self._message(dist.irecv, buffer, source, tag) for source, (buffer, _) in into.items()]
        for transfer, view in far:
            packed = view
            if not view.is_contiguous():
                packed = buffers.take(view.numel(), view)
                packed.view(view.shape).copy_(view)
                lent.append(partial(buffers.give, packed))
            messages.append(self._message(dist.isend, packed, transfer.target, tag))
        works = dist.batch_isend_irecv(messages) if messages else []
        apart = len(works) == len(messages)  # some backends answer once for all messages
        for number, (source, (buffer, lender)) in enumerate(into.items()):
            ready[source] = _Received(buffer, works[number : number + 1] if apart else works, lender)
        incoming: list[tuple[Box, Tensor, Arriving]] = [
            (
                one.box,
                places[one.source],
                _Near(near[one.source], tag) if one.source in near else ready[one.source],
            )
            for one in self._receives
        ]
        return incoming, [*(work.wait for work in works[len(into) if apart else 0 :]), *lent]

    def _message(self, verb: Callable[..., Any], values: Tensor, other: int, tag: int) -> dist.P2POp:
        size = values.numel() * values.element_size()
        return dist.P2POp(
            verb, values, self.mesh.member(other), self.mesh.group, tag % TAGS * _SIZES + size % _SIZES
        )

    def _room(self, place: Tensor) -> tuple[Tensor, Buffers | None]:
        """Where a message that belongs in a place is received: there, or in a buffer."""
        if not self._summing and place.is_contiguous():
            return place, None
        return self.mesh.buffers.take(place.numel(), place), self.mesh.buffers


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

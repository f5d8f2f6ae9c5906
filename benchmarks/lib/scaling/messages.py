"""The exchanges of a step, one after the other, or a step without their messages.

Knows: the exchanges of a stack's step, how messages are suppressed or timed. Does not know: products, bars.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold.geometry import Box, ExchangePlan, StackPartition
from cotswold.mesh import Exchange
from cotswold.mesh.maps.crop import crop
from cotswold.mesh.stacks.share import RankShare

PIXELS, OVERLAP_SUM = "fetch of pixels", "overlap-sum"
POOLING, POOLING_BACK = "pooling window", "pooling, adjoint"


class Awaited(Protocol):
    """A message in flight."""

    def wait(self) -> object:
        """Block until the message was received or sent."""
        ...


Send = Callable[[list[dist.P2POp]], Sequence[Awaited]]


@contextmanager
def messages_by(send: Send) -> Iterator[None]:
    """Send the messages of this process through ``send`` inside the context."""
    torch_distributed: Any = dist
    before = torch_distributed.batch_isend_irecv
    torch_distributed.batch_isend_irecv = send
    try:
        yield
    finally:
        torch_distributed.batch_isend_irecv = before


def nothing_sent(messages: list[dist.P2POp]) -> Sequence[Awaited]:
    """Suppress messages: packing and unpacking still run, on zeros.

    Memory may hold NaN, which would ruin the state of the step.
    """
    for message in messages:
        if message.op is dist.irecv:
            message.tensor.zero_()
    return []


def without_messages(action: Callable[[], object]) -> Callable[[], None]:
    """Return the action without messages between pairs of ranks; sums of scalars remain."""

    def bare() -> None:
        with messages_by(nothing_sent):
            action()

    return bare


class Waits:
    """Seconds for which this rank was blocked by unfinished messages."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def counted(self, action: Callable[[], object]) -> Callable[[], None]:
        """Return the action with its waits counted from zero."""
        send = dist.batch_isend_irecv

        def counting() -> None:
            self.seconds = 0.0
            with messages_by(lambda messages: [_Waited(one, self) for one in send(messages)]):
                action()

        return counting


class _Waited:
    def __init__(self, work: Awaited, waits: Waits) -> None:
        self._work, self._waits = work, waits

    def wait(self) -> object:
        start = time.perf_counter()
        done = self._work.wait()
        self._waits.seconds += time.perf_counter() - start
        return done


class Maps:
    """Maps of zeros with a step's shapes on one rank, and exchanges between them."""

    def __init__(self, share: RankShare, images: int) -> None:
        self.share, geometry = share, share.partition.geometry
        like = torch.empty((images, 0, 0, 0))
        self.depth, rank = geometry.filters.depth, share.mesh.rank
        around, own = share.partition.pooling.reads[rank], share.partition.responses.box(rank)
        assert around.contains(own), "measured stacks pool what they compute"
        self.window = share.empty(like, share.window, geometry.input.channels).zero_()
        self.own = share.own_of(self.window)
        self.around = share.empty(like, around, self.depth).zero_()
        self.placed = crop(self.around, own, around)
        """A view of the rank's own part in the window of pooling."""

    def of_step(self) -> list[Callable[[], Tensor]]:
        """Return the exchanges of a step in order; each blocks."""
        entry = self.share.entry
        entered = [] if entry is None else [lambda: entry.start(self.own).finish()]
        return [
            *entered,
            self.pooling,
            self.overlap_sum,
            self.pixels,
            self.pooling_back,
        ]

    def pixels(self) -> Tensor:
        """Move the rank's own pixels into windows, in place."""
        return self.share.pixels.start(self.own, into=self.window).finish()

    def pooling(self) -> Tensor:
        """Move the rank's own responses into the windows of pooling, in place."""
        return self.share.pooling.start(self.placed, into=self.around).finish()

    def pooling_back(self) -> Tensor:
        """Sum gradients on windows of pooling into own responses, in place."""
        return self.share.scatter(self.around).finish()

    def overlap_sum(self) -> Tensor:
        """Sum windows into own pixels, in place."""
        return self.share.pixels.adjoint.start(self.window, into=self.own).finish()

    def by_name(self) -> dict[str, tuple[Callable[[], Tensor], Exchange]]:
        """Return exchanges of windows by name, in place like those of a step."""
        share = self.share
        pooling = share.pooling
        return {
            PIXELS: (self.pixels, share.pixels),
            OVERLAP_SUM: (self.overlap_sum, share.pixels.adjoint),
            POOLING: (self.pooling, pooling),
            POOLING_BACK: (self.pooling_back, pooling.adjoint),
        }


def plans_of_step(cut: StackPartition, below: Sequence[Box] | None) -> list[tuple[ExchangePlan, int]]:
    """Return the plans of a step's exchanges and the channels of their maps."""
    geometry = cut.geometry
    channels, depth = geometry.input.channels, geometry.filters.depth
    entry = [] if below is None else [(ExchangePlan(tuple(below), cut.windows), channels)]
    return [
        *entry,
        (cut.pooling, depth),
        (cut.pixels.adjoint, channels),
        (cut.pixels, channels),
        (cut.pooling.adjoint, depth),
    ]


def raw(exchange: Exchange, values: int) -> Callable[[], None]:
    """Return the same messages between contiguous buffers, without packing, copies or sums."""
    mesh, rank = exchange.mesh, exchange.mesh.rank
    into = [(one.source, torch.zeros(one.box.size * values)) for one in exchange.plan.receives(rank)]
    out = [(one.target, torch.zeros(one.box.size * values)) for one in exchange.plan.sends(rank)]

    def send() -> None:
        messages = [
            *(dist.P2POp(dist.irecv, one, mesh.global_rank(source), mesh.group) for source, one in into),
            *(dist.P2POp(dist.isend, one, mesh.global_rank(target), mesh.group) for target, one in out),
        ]
        for work in dist.batch_isend_irecv(messages) if messages else []:
            work.wait()

    return send

"""Simulated replicas, event by event, with real gradients: the effect of staleness on accuracy.

Knows: pulls, steps and pushes in simulated time, gradients at the parameters of that time. Does not know:
messages, failures, counting (see `simulate.protocols.replicas`).

A replica starts a step with the newest parameters that it has received, and computes for its own time. Then
it sends its push and its next pull, and starts the next step at once, unless the previous push is still in
flight. Without overlap it waits first for the push, then for the pull. The server applies pushes in order of
arrival, one after the other, with the arithmetic of the real server. A pull returns the parameters at its
arrival. So one replica without overlap is SGD, to the bit. With overlap, a replica computes its next step
from parameters without its last push: staleness is about twice the number of the other replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.errors import UserError
from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Rule, Sgd
from cotswold.paramserver.core.replica_session import Pace
from cotswold.paramserver.core.staleness import StalenessHistogram
from cotswold.replicas.work import ReplicaWork
from cotswold.shards.core.admission import ShardUpdates
from cotswold.shards.runtime.arithmetic import NumpyArithmetic
from cotswold.shards.runtime.work import samples_of
from cotswold.simulate.protocols.loop import VirtualTimeLoop

Vector = NDArray[np.floating]


@dataclass(frozen=True)
class Machines:
    """Replicas and a server in simulated time; raises UserError for invalid settings."""

    replicas: int
    step_seconds: float = 1.0
    """Seconds that a median replica computes on a batch."""
    speeds: float = 0.3
    """σ of the normal logarithms of replicas' seconds per step; 0 for equal replicas."""
    jitter: float = 0.1
    """σ of the logarithms of one replica's steps."""
    travel_seconds: float = 0.1
    """Seconds of a message, one way."""
    apply_seconds: float = 0.0
    """Seconds of the server per push; the next push waits."""
    seed: int = 0
    """Seed of the speeds."""

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise UserError(f"replicas must be at least 1, got {self.replicas}")
        if not self.step_seconds > 0:
            raise UserError(f"step_seconds must be greater than 0, got {self.step_seconds}")
        for name in ("speeds", "jitter", "travel_seconds", "apply_seconds"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class Learning:
    """Work and length of a simulation."""

    pace: Pace
    """Batch, n_fetch and n_push."""
    rate: float
    """Largest rate of the schedule."""
    samples: int
    """Number of applied samples that ends the simulation."""
    rule: Rule = Sgd()  # noqa: RUF009  # frozen
    warm_samples: int = 0
    """Samples that one replica learns alone first."""
    seed: int = 0
    """Seed of the order of samples."""
    schedule: SampleSchedule = SampleSchedule()  # noqa: RUF009  # frozen
    """Rate of a push by the place of its first sample, as on servers."""


@dataclass(frozen=True)
class Moment:
    """State of a simulation."""

    seconds: float
    """Simulated seconds."""
    samples: int
    """Applied samples."""
    busy_seconds: float
    """Seconds of all replicas' started steps."""
    parameters: Tensor
    """Live parameters, ``(size,)``."""
    loss: float | None = None
    """Mean loss over the samples computed since the last moment, at the time of learning; None without
    samples."""


class SimulatedReplicas:
    """One simulation; `run` executes it."""

    def __init__(self, work: ReplicaWork, machines: Machines, learning: Learning) -> None:
        """Start from the work's parameters, which the simulation changes; no other code may use the work."""
        self.staleness = StalenessHistogram()
        """Histogram of applied pushes by the number of other pushes between pull and push."""
        self._work, self._machines, self._learning = work, machines, learning
        self._weights: Vector = work.parameters.numpy().copy()
        self._kept = [np.zeros_like(self._weights) for _ in learning.rule.state_names]
        self._arithmetic = NumpyArithmetic(str(self._weights.dtype))
        self._loop = VirtualTimeLoop()
        self._chance = np.random.default_rng(machines.seed)
        self._speeds = machines.step_seconds * np.exp(
            machines.speeds * self._chance.standard_normal(machines.replicas)
        )
        self._copy: tuple[int, Vector] | None = None
        """Copy of the weights of a version, shared by all replicas that pull it."""
        self._version = self._samples = self._handed = 0
        self._losses, self._computed = 0.0, 0
        """Sum of losses and number of samples since the last moment."""
        self._server_free = self._busy = 0.0
        self._replicas = [_Replica(self, number) for number in range(machines.replicas)]

    def run(self, watch: Callable[[Moment], object], every: int) -> Moment:
        """Run until all samples are applied; call ``watch`` before the first, and about every ``every``
        samples."""
        told = 0
        watch(self._now())
        self._replicas[0].begin()
        waiting = self._replicas[1:]

        def is_due() -> bool:
            return self._samples >= min(told + every, self._learning.samples) or bool(
                waiting and self._samples >= self._learning.warm_samples
            )

        while self._samples < self._learning.samples:
            if waiting and self._samples >= self._learning.warm_samples:
                for replica in waiting:
                    replica.begin()
                waiting = []
            self._loop.run(is_due, float("inf"), 1 << 62)
            if self._samples >= min(told + every, self._learning.samples):
                told = self._samples
                watch(self._now())
        return self._now()

    def _now(self) -> Moment:
        loss = self._losses / self._computed if self._computed else None
        self._losses, self._computed = 0.0, 0
        return Moment(self._loop.now, self._samples, self._busy, torch.from_numpy(self._weights), loss)

    # --- the server ---

    def _pulled(self) -> tuple[int, Vector]:
        """Return the newest version and a copy of its weights."""
        if self._copy is None or self._copy[0] != self._version:
            self._copy = (self._version, self._weights.copy())
        return self._copy

    def _applied(self, push: _Push) -> None:
        learning = self._learning
        rate = learning.schedule.rate(learning.rate, push.place)
        self._arithmetic.apply(
            learning.rule, [ShardUpdates(self._weights, self._kept, [(rate, push.gradient)], columns=1)]
        )
        self.staleness.add(self._version - push.version)
        self._version += 1
        self._samples += push.samples

    # --- messages and steps, for replicas ---

    def _pull(self, give: Callable[[int, Vector], None]) -> None:
        travel = self._machines.travel_seconds

        def arrive() -> None:
            version, weights = self._pulled()
            self._loop.schedule(travel, lambda: give(version, weights))

        self._loop.schedule(travel, arrive)

    def _push(self, push: _Push, done: Callable[[], None]) -> None:
        machines, loop = self._machines, self._loop

        def arrive() -> None:
            self._server_free = max(loop.now, self._server_free) + machines.apply_seconds
            if self._server_free > loop.now:
                loop.schedule(self._server_free - loop.now, apply)
            else:
                apply()

        def apply() -> None:
            self._applied(push)
            loop.schedule(machines.travel_seconds, done)

        loop.schedule(machines.travel_seconds, arrive)

    def _batch(self) -> tuple[int, int]:
        """Return the places of the next samples, within one epoch."""
        start = self._handed
        end = (start // self._work.samples + 1) * self._work.samples
        self._handed = min(end, start + self._learning.pace.batch)
        return start, self._handed

    def _seconds(self, number: int) -> float:
        """Draw the seconds of a replica's next step."""
        drawn = float(self._speeds[number] * np.exp(self._machines.jitter * self._chance.standard_normal()))
        self._busy += drawn
        return drawn

    def _compute(self, places: tuple[int, int], weights: Vector, gradient: Vector) -> int:
        self._work.parameters.copy_(torch.from_numpy(weights))
        samples = samples_of(self._work, self._learning.seed, *places)
        found = self._work.compute(samples, torch.from_numpy(gradient))
        self._losses, self._computed = self._losses + found.value, self._computed + found.samples
        return found.samples


@dataclass
class _Push:
    """Accumulated steps."""

    version: int
    """Version of the weights of the first step."""
    place: int
    """Place of the first sample."""
    gradient: Vector
    samples: int = 0


class _Replica:
    """One replica: its parameters and its next action."""

    def __init__(self, simulation: SimulatedReplicas, number: int) -> None:
        self._simulation, self._number = simulation, number
        self._pace = simulation._learning.pace
        self._has: tuple[int, Vector] | None = None
        self._sum: _Push | None = None
        self._steps = self._since_pull = 0
        self._closed: _Push | None = None
        """A push that waits for the previous one; meanwhile the replica takes no step."""
        self._is_pulling = self._is_pushing = self._is_stepping = False

    def begin(self) -> None:
        """Pull, then step endlessly."""
        self._fetch()

    def _fetch(self) -> None:
        self._is_pulling, self._since_pull = True, 0
        self._simulation._pull(self._given)

    def _given(self, version: int, weights: Vector) -> None:
        self._has, self._is_pulling = (version, weights), False
        self._go_on()

    def _go_on(self) -> None:
        """Pull and step, if allowed now."""
        overlap = self._pace.overlap
        is_due = self._since_pull >= self._pace.n_fetch and not self._is_pulling
        if is_due and (overlap or not self._is_pushing):
            self._fetch()
        if self._is_stepping or self._closed is not None:
            return
        if overlap or not (self._is_pushing or self._is_pulling):
            self._step()

    def _step(self) -> None:
        assert self._has is not None, "it has pulled"
        version, weights = self._has
        self._is_stepping = True
        places = self._simulation._batch()
        if self._sum is None:
            self._sum = _Push(version, places[0], np.zeros_like(weights))
        seconds = self._simulation._seconds(self._number)
        self._simulation._loop.schedule(seconds, lambda: self._stepped(places, weights))

    def _stepped(self, places: tuple[int, int], weights: Vector) -> None:
        assert self._sum is not None, "a step is accumulated"
        self._is_stepping = False
        self._sum.samples += self._simulation._compute(places, weights, self._sum.gradient)
        self._steps, self._since_pull = self._steps + 1, self._since_pull + 1
        if self._steps % self._pace.n_push == 0:
            self._closed, self._sum = self._sum, None
            self._push()
        self._go_on()

    def _push(self) -> None:
        if self._closed is None or self._is_pushing:
            return
        closed, self._closed, self._is_pushing = self._closed, None, True
        self._simulation._push(closed, self._pushed)

    def _pushed(self) -> None:
        self._is_pushing = False
        self._push()
        self._go_on()

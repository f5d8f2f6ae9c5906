"""The training loop that every strategy goes through.

Knows: phases and steps, when to write events and checkpoints, when to stop. Does not know: any one
strategy, the terminal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import torch

from cotswold.checkpoint import Checkpoints, Piece, SealedPiece
from cotswold.errors import CheckpointError, DivergedError
from cotswold.run import Account, Stop
from cotswold.training.strategy import Batch, Measured, Strategy
from cotswold.training.team import SOLO, Team

EVENT_SECONDS = 1.0
EVENTS_LEAST = 60
"""Events of a phase at least, however short it is: the points of its curves."""


@dataclass
class Position:
    """Where in the run the next step is."""

    phase: int = 0
    step: int = 0
    total: int = 0
    """Steps taken in all phases."""


class Pictures(Protocol):
    """An endless row of batches that knows its place and can go back to it."""

    @property
    def waited_seconds(self) -> float:
        """Seconds in which training waited for a batch."""
        ...

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the present place on."""
        ...

    def state_dict(self) -> dict[str, object]:
        """The place of the next batch."""
        ...


class Log(Protocol):
    """Where events go."""

    def write(self, kind: str, **fields: object) -> None:
        """One event."""
        ...


@dataclass
class Loop:
    """One strategy, its pictures and the run directory's files."""

    strategy: Strategy
    pictures: Pictures
    log: Log
    checkpoints: Checkpoints
    best: Checkpoints
    account: Account
    stop: Stop
    checkpoint_seconds: float
    team: Team = SOLO
    stamp: Mapping[str, object] = field(default_factory=dict)
    """What every checkpoint's state has besides: the same from the beginning of the run to its end."""
    position: Position = field(default_factory=Position)
    _counted_until: float = 0.0

    def run(self) -> bool:
        """Train to the end (True) or to the step in which a stop was asked for (False); saves in both
        cases."""
        self._counted_until = time.monotonic()
        try:
            return self._run()
        finally:
            self._counted()

    def _run(self) -> bool:
        batches = iter(self.pictures)
        saved_at = time.monotonic()
        while self.position.phase < self.strategy.phases:
            if self.position.step == 0:
                self.log.write("stack", **self.strategy.describe(self.position.phase))
            if not self._phase(batches, saved_at):
                self._save()
                return False
            self.position.phase += 1
            self.position.step = 0
            self._save()
            saved_at = time.monotonic()
        return True

    def _phase(self, batches: Iterator[Batch], saved_at: float) -> bool:
        """Take the phase's remaining steps; False where a stop was asked for."""
        strategy, position = self.strategy, self.position
        phase = position.phase
        steps, interval = strategy.steps(phase), strategy.interval(phase)
        described, flops = strategy.describe(phase), strategy.flops(phase)
        label, before = described["stack"], _steps_before(described)
        meter, every = _Meter(self.pictures), -(-steps // EVENTS_LEAST)
        started, flops_before, patterns_before = time.monotonic(), self.account.flops, self.account.patterns
        while position.step < steps:
            due = time.monotonic() - saved_at > self.checkpoint_seconds
            over = position.step > 0 and strategy.finished(phase)
            wishes = [int(over), self.stop.signal or 0, int(due)]
            finished, signal, save = self.team.agree(wishes)
            if finished:
                break
            if signal:
                self.stop.signal = signal
                return False
            batch = next(batches)
            if position.step == 0:
                strategy.begin(phase, batch)
                self._validate()
            measured = strategy.advance(phase, position.step, batch)
            self._check(measured)
            position.step += 1
            position.total += 1
            images = batch.pictures.shape[0]
            self.account.add(patterns=images, flops=images * flops)
            meter.add(measured, images, images * flops)
            if meter.due() or position.step % every == 0 or position.step == steps:
                place = {"step": position.total, "of": before + steps, "at": before + position.step}
                self.log.write("step", stack=label, **place, **meter.take())
            if position.step % interval == 0 or position.step == steps:
                self._validate()
            if save:
                self._save()
                saved_at = time.monotonic()
        self.log.write(
            "stack_end",
            stack=label,
            step=position.total,
            phase_seconds=time.monotonic() - started,
            patterns=self.account.patterns - patterns_before,
            flops=self.account.flops - flops_before,
        )
        return True

    def _validate(self) -> None:
        measured = self.strategy.validate(self.position.phase)
        if measured is None:
            return
        described = self.strategy.describe(self.position.phase)
        self.log.write(
            "validation",
            stack=described["stack"],
            step=self.position.total,
            at=_steps_before(described) + self.position.step,
            loss=measured.loss,
            **measured.details,
        )
        if self.team.agree([int(self.strategy.improved)])[0]:
            self._save(self.best)

    def _check(self, measured: Measured) -> None:
        if not math.isfinite(measured.loss):
            raise self._diverged(f"the objective became {measured.loss}", self.position.total + 1)

    def _diverged(self, what: str, step: int) -> DivergedError:
        paths = self.checkpoints.paths()
        kept = f"the last good checkpoint is {paths[-1]}" if paths else "no checkpoint had been written yet"
        return DivergedError(
            f"{what} at step {step}; {kept}; try a smaller learning rate (training.relative_rate for stacks, "
            "training.learning_rate with labels)"
        )

    def _save(self, checkpoints: Checkpoints | None = None) -> None:
        tensors = self.strategy.tensors(self.position.phase, self.position.step)
        for item in tensors.items():
            self._check_finite(*item)
        state: dict[str, object] = {
            **self.stamp,
            "strategy": self.strategy.state(),
            "pictures": self.pictures.state_dict(),
            "position": vars(self.position).copy(),
            "account": self._counted(),
        }
        pieces = (Piece(*item) for item in tensors.items())
        apart = map(self._sound, self.strategy.apart(self.position.phase, self.position.step))
        path = (checkpoints or self.checkpoints).save(self.position.total, chain(pieces, apart), state)
        self.log.write("checkpoint", step=self.position.total, path=path.name)

    def _sound(self, piece: Piece | SealedPiece) -> Piece | SealedPiece:
        """A piece of this rank's; raises DivergedError where it holds what no checkpoint should."""
        if isinstance(piece, Piece):
            self._check_finite(piece.name, piece.tensor)
        return piece

    def _check_finite(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.sum())):
            raise self._diverged(f"{name} came to hold values that are not finite", self.position.total)

    def _counted(self) -> dict[str, float | int | None]:
        now = time.monotonic()
        self.account.add(seconds=now - self._counted_until, wire_bytes=self.team.take_count())
        self._counted_until = now
        return self.account.state()


class _Meter:
    """Means and rates between two events."""

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures
        self._reset()

    def _reset(self) -> None:
        self.started = time.monotonic()
        self.waited = self.pictures.waited_seconds
        self.steps = 0
        self.images = 0
        self.flops = 0
        self.loss = 0.0
        self.details: dict[str, float] = {}

    def add(self, measured: Measured, images: int, flops: int) -> None:
        """Count one step."""
        self.steps += 1
        self.images += images
        self.flops += flops
        self.loss += measured.loss
        for name, value in measured.details.items():
            self.details[name] = self.details.get(name, 0.0) + value

    def due(self) -> bool:
        """Whether an event's time has passed."""
        return time.monotonic() - self.started >= EVENT_SECONDS

    def take(self) -> dict[str, float]:
        """Means since the last event, rates, and seconds waited for pictures; begins anew."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        taken = {
            "loss": self.loss / self.steps,
            **{name: total / self.steps for name, total in self.details.items()},
            "pictures_per_second": self.images / seconds,
            "gflops": self.flops / seconds / 1e9,
            "interval_steps": self.steps,
            "waited_seconds": self.pictures.waited_seconds - self.waited,
            "interval_seconds": seconds,
        }
        self._reset()
        return taken


def _steps_before(described: Mapping[str, object]) -> int:
    """Steps that earlier phases of a prolonged run have taken of the same stack; its curves go on."""
    before = described.get("steps_before", 0)
    assert isinstance(before, int), "a strategy counts steps"
    return before


def position_from(state: Mapping[str, object]) -> Position:
    """The position that a checkpoint holds; raises CheckpointError where it does not."""
    found = state.get("position")
    if (
        not isinstance(found, dict)
        or set(found) != {"phase", "step", "total"}
        or not all(type(value) is int and value >= 0 for value in found.values())
    ):
        raise CheckpointError(
            "the checkpoint does not say where in the run it was taken; it is of another version"
        )
    return Position(**found)

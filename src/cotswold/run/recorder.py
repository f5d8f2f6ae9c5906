"""What a run records while it is trained, whatever trains it.

Knows: events, the account, when a checkpoint is due, the wish to stop. Does not know: what is trained, by
which clock of its own (steps, evaluations, samples): whoever drives it says where in the run it is.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal, Protocol

import torch
from torch import Tensor

from cotswold.checkpoint import Checkpoint, Checkpoints, Latest, Piece, SealedPiece
from cotswold.errors import DivergedError
from cotswold.recipe.schema import Price
from cotswold.run.first_checkpoint import FIRST_SAVE_SECONDS
from cotswold.run.metrics import Means, Meter, Metrics
from cotswold.run.stop import Stop
from cotswold.run.usage import Account

_SAVES_SHARE = 10
"""Early checkpoints are at least so many times as far apart as the last one took."""
EVENT_SECONDS = 1.0
"""Means are due so long after the last ones."""
_STEADY = "reconstruction"
"""The part of an objective that means the same from first to last, where there is one: sparsity of a stack
weighs more and more while it learns."""
_FAR = 10.0
"""A loss that ends so many times above where it began is worth a warning."""
_LAST = 8
"""Of so many losses, the last ones, the median is where it ended."""


class Log(Protocol):
    """Where events go."""

    def write(self, kind: str, **fields: object) -> None:
        """One event."""
        ...

    def show(self, kind: str, **fields: object) -> None:
        """One that is shown, and not kept."""
        ...


class NoLog:
    """Where the events of ranks go that write none: nowhere."""

    def write(self, kind: str, **fields: object) -> None:
        """Drop it."""

    def show(self, kind: str, **fields: object) -> None:
        """Drop it."""


@dataclass
class Recorder:
    """Events, account, checkpoints and the wish to stop of one process of a run."""

    log: Log
    checkpoints: Checkpoints
    best: Checkpoints
    stop: Stop
    checkpoint_seconds: float
    metadata: Mapping[str, object] = field(default_factory=dict)
    """What the state of every checkpoint says besides: the same from the beginning of the run to its end."""
    remedy: str = "try a smaller learning rate"
    """What to do about an objective that is no number any more."""
    sent_bytes: Callable[[], int] = lambda: 0
    """Bytes that the transports sent since it was last called."""
    clock: Callable[[], float] = time.monotonic
    run_clock: Callable[[], float] | None = None
    """Seconds of the run so far, start-up and lost work included, which limits and rent go by; None: those of
    training."""
    seconds_max: float | None = None
    """Seconds of the run after which it is to save and stop; None without a limit."""
    account: Account = field(default_factory=Account)

    def __post_init__(self) -> None:
        self._meter = Meter(self.clock)
        self._saved_at = self._counted_until = self.clock()
        self._last_losses: deque[float] = deque(maxlen=_LAST)
        self._warned = ""
        self._odd: Mapping[str, set[str]] = {}
        self._save_seconds = {"checkpoints": 0.0, "best": 0.0}  # what the last of each took

    def start(self) -> None:
        """Training begins or goes on now: seconds are counted from here."""
        self._saved_at = self._counted_until = self.clock()

    def event(self, kind: str, **fields: object) -> None:
        """Write an event; with a `stack` a phase begins, whose loss is another one."""
        if kind == "stack":
            self.account.first_loss = None
            self._last_losses.clear()
        self.log.write(kind, **fields)

    def show(self, kind: str, **fields: object) -> None:
        """Show an event that is of interest for a moment, and is not kept."""
        self.log.show(kind, **fields)

    def warn(self, what: str) -> None:
        """Have the end of the run say this; once, the newest."""
        self._warned = what

    def count(self, samples: int, flops: int) -> None:
        """Count work of so many samples, ``flops`` in all, whatever came of it."""
        self.account.add(samples=samples, flops=flops)

    def limit_within(self, seconds: float) -> bool:
        """Whether the time, or the money, of the run will be spent in so many seconds and another save as
        long as the last."""
        needed = self.run_seconds + seconds + sum(self._save_seconds.values())
        return self.seconds_max is not None and needed >= self.seconds_max

    @property
    def run_seconds(self) -> float:
        """Seconds of the run so far: of all its sessions, from the start of their commands."""
        return self.seconds if self.run_clock is None else self.run_clock()

    @property
    def seconds(self) -> float:
        """Seconds of training so far, those before resumptions included."""
        return self.account.seconds + self.clock() - self._counted_until

    def add(self, metrics: Metrics, flops: int, where: str) -> None:
        """Count what training measured; ``flops`` are those of one sample.

        Raises DivergedError, which names ``where``, for a loss that is no number.
        """
        if not math.isfinite(metrics.loss):
            raise self.diverged(f"the objective became {metrics.loss}", where, metrics.remedy)
        flops *= metrics.samples
        self.account.add(samples=metrics.samples, flops=flops)
        steady = metrics.details.get(_STEADY, metrics.loss)
        if metrics.counted:
            if self.account.first_loss is None:
                self.account.first_loss = steady
            self._last_losses.append(steady)
        self._meter.add(metrics, flops)

    def restart_means(self, waited_seconds: float) -> None:
        """Means begin anew here; ``waited_seconds`` were waited for data so far."""
        self._meter.restart(waited_seconds)

    @property
    def means_due(self) -> bool:
        """Whether the time of the next event has come."""
        return self._meter.seconds >= EVENT_SECONDS

    def means(self, waited_seconds: float) -> Means:
        """Means since they were last taken; ``waited_seconds`` were waited for data so far."""
        return self._meter.take(waited_seconds)

    @property
    def save_due(self) -> bool:
        """Whether the time of the next checkpoint has come.

        The first is due after `FIRST_SAVE_SECONDS`, and each next one after as long as the run had trained
        before, until ``checkpoint_seconds`` are reached. So a run that loses everything loses half of its
        training at most, and not more than ``checkpoint_seconds``.
        """
        since = self.clock() - self._saved_at
        early = max(
            FIRST_SAVE_SECONDS, self.seconds - since, _SAVES_SHARE * self._save_seconds["checkpoints"]
        )
        return since > min(self.checkpoint_seconds, early)

    def save(
        self,
        number: int,
        pieces: Iterable[Piece | SealedPiece],
        state: Mapping[str, object],
        where: str,
    ) -> Path:
        """Write a checkpoint; ``number`` orders it among the others, ``where`` is the same in words.

        Raises DivergedError where a tensor holds values that are not finite, and what `Checkpoints.save`
        raises.
        """
        return self.saving(number, pieces, state, where)()

    def saving(
        self, number: int, pieces: Iterable[Piece | SealedPiece], state: Mapping[str, object], where: str
    ) -> Callable[[], Path]:
        """What `save` does, in two parts: the account is taken now, and the function that is returned writes,
        in another thread if one likes: one at a time, and no pieces that change meanwhile."""
        return self._saving("checkpoints", number, pieces, state, where)

    def save_best(
        self, number: int, pieces: Iterable[Piece | SealedPiece], state: Mapping[str, object], where: str
    ) -> Path:
        """Write a checkpoint that is kept because its validation is the best so far; else as `save`."""
        return self.saving_best(number, pieces, state, where)()

    def saving_best(
        self, number: int, pieces: Iterable[Piece | SealedPiece], state: Mapping[str, object], where: str
    ) -> Callable[[], Path]:
        """`save_best` in two parts, as `saving`."""
        return self._saving("best", number, pieces, state, where)

    def _saving(
        self,
        which: Literal["checkpoints", "best"],
        number: int,
        pieces: Iterable[Piece | SealedPiece],
        state: Mapping[str, object],
        where: str,
    ) -> Callable[[], Path]:
        self.settle()
        kept = {**self.metadata, **state, "account": self.account.state()}
        into = self.checkpoints if which == "checkpoints" else self.best

        def write() -> Path:
            began = self.clock()
            path = into.save(number, self._finite(pieces, where), kept)
            now = self.clock()
            self._save_seconds[which] = now - began
            if which == "checkpoints":
                self._saved_at = now
            return path

        return write

    def resume(self, use: Callable[[Checkpoint], None]) -> Latest:
        """The newest checkpoint that ``use`` has taken, as `Checkpoints.latest`; the account goes on."""

        def take(checkpoint: Checkpoint) -> None:
            use(checkpoint)
            self.account = Account.restored(checkpoint.state["account"])

        return self.checkpoints.latest(take)

    def settle(self) -> None:
        """Add the seconds and bytes since this was last called to the account."""
        now = self.clock()
        self.account.add(seconds=now - self._counted_until, wire_bytes=self.sent_bytes())
        self._counted_until = now

    def end(self, status: str, price: Price, why: str = "") -> None:
        """Write the last event: how it ended, ``why`` where it failed, the account, and a ``warning`` where
        there is one, or the loss ended far above where it began."""
        summary = self.account.summary(price, self.run_seconds)
        # an event's own seconds are those of the run
        summary["training_seconds"] = summary.pop("seconds")
        warnings = [] if status == "failed" else [each for each in (self._grown(), self._warned) if each]
        said = {"why": why} if why else {}
        self.event(
            "end", status=status, **said, **({"warning": "; ".join(warnings)} if warnings else {}), **summary
        )

    def _grown(self) -> str:
        """What is to be said of a loss that grew far, and stayed finite; empty where it did not."""
        first = self.account.first_loss
        if not first or first < 0 or not self._last_losses:
            return ""
        last = median(self._last_losses)
        if last <= _FAR * first:
            return ""
        return f"the loss ended at {last:.3g}, far above the {first:.3g} at which it began; {self.remedy}"

    def diverged(self, what: str, where: str, remedy: str = "") -> DivergedError:
        """The error of a run whose numbers are no longer finite; ``remedy`` [the recorder's remedy]."""
        paths = self.checkpoints.paths()
        kept = f"the last good checkpoint is {paths[-1]}" if paths else "no checkpoint had been written yet"
        return DivergedError(f"{what} at {where}; {kept}; {remedy or self.remedy}")

    def begin_with(self, tensors: Mapping[str, Tensor]) -> None:
        """Accept in checkpoints, by name, the infinities and NaN that these tensors hold before training: a
        mask of -inf is no sign of divergence."""
        self._odd = {name: found for name, each in tensors.items() if (found := _not_finite(each))}

    def _finite(self, pieces: Iterable[Piece | SealedPiece], where: str) -> Iterator[Piece | SealedPiece]:
        for piece in pieces:
            if isinstance(piece, Piece) and _not_finite(piece.tensor) - self._odd.get(piece.name, set()):
                raise self.diverged(f"{piece.name} came to hold values that are not finite", where)
            yield piece


def _not_finite(tensor: Tensor) -> set[str]:
    """Which of ``inf`` and ``nan`` a tensor holds."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
        return set()
    tensor = tensor.detach()
    if tensor.is_floating_point() and tensor.itemsize == 1:
        tensor = tensor.float()  # torch does not add such numbers
    if bool(torch.isfinite(tensor.sum())):
        return set()
    tests = {"inf": torch.isinf, "nan": torch.isnan}  # a sum of finite values may overflow
    return {name for name, test in tests.items() if bool(test(tensor).any())}

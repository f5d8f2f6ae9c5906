"""Records of a run during training, for all strategies.

Knows: events, the account, when a checkpoint is due, stop requests. Does not know: what is trained, its own
progress (steps, evaluations, samples): the caller states the position in the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import Tensor

from cotswold.checkpoint import Checkpoint, CheckpointManager, Latest, SealedChunk, TensorChunk
from cotswold.errors import DivergedError
from cotswold.recipe.schema import Price
from cotswold.run.events import Log
from cotswold.run.metrics import LossTrend, Means, Meter, Metrics, kinds_not_finite
from cotswold.run.stop import FIRST_SAVE_SECONDS, Stop
from cotswold.run.usage import Usage

_SAVES_SHARE = 10
"""Minimum interval of early checkpoints, as a multiple of the duration of the last save."""
EVENT_SECONDS = 1.0
"""Interval of means in seconds."""
_STEADY = "reconstruction"
"""Part of an objective whose meaning is constant during training, if it exists; the weight of a stack's
sparsity rises while it learns.
"""


@dataclass
class Recorder:
    """Records events, account and checkpoints of one process of a run, and holds its stop request.

    Args:
        log: receives events.
        checkpoints: the newest checkpoints.
        best: the checkpoint with the best validation.
        stop: the stop request, which the caller reads between steps.
        checkpoint_seconds: longest interval of checkpoints in seconds.
        metadata: constant entries of every checkpoint's state.
        remedy: advice if the objective is not finite.
        sent_bytes: returns the bytes that the transports sent since its last call.
        clock: monotonic clock in seconds.
        run_clock: returns the seconds of the run, start-up and lost work included, for limits and rent; None
            for the seconds of training.
        seconds_max: seconds of the run until it must save and stop; None without a limit.
        usage: totals of the run.
    """

    log: Log
    checkpoints: CheckpointManager
    best: CheckpointManager
    stop: Stop
    checkpoint_seconds: float
    metadata: Mapping[str, object] = field(default_factory=dict)
    remedy: str = "try a smaller learning rate"
    sent_bytes: Callable[[], int] = lambda: 0
    clock: Callable[[], float] = time.monotonic
    run_clock: Callable[[], float] | None = None
    seconds_max: float | None = None
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self._meter = Meter(self.clock)
        self._saved_at = self._counted_until = self.clock()
        self._trend = LossTrend()
        self._warned = ""
        self._allowed_nonfinite: Mapping[str, set[str]] = {}
        self._save_seconds = {"checkpoints": 0.0, "best": 0.0}  # duration of the last save of each

    def start(self) -> None:
        """Start counting seconds: training starts or resumes now."""
        self._saved_at = self._counted_until = self.clock()

    def event(self, kind: str, **fields: object) -> None:
        """Write an event; one with kind `phase_start` starts a phase with incomparable losses.

        Args:
            kind: kind of the event.
            fields: its values.
        """
        if kind == "phase_start":
            self.usage.first_loss = None
            self._trend.clear()
        self.log.write(kind, **fields)

    def show(self, kind: str, **fields: object) -> None:
        """Show a transient event without saving it.

        Args:
            kind: kind of the event.
            fields: its values.
        """
        self.log.show(kind, **fields)

    def warn(self, what: str) -> None:
        """Add a warning to the end event; a later warning replaces it.

        Args:
            what: the warning.
        """
        self._warned = what

    def count(self, samples: int, flops: int) -> None:
        """Add work to the account, even if its result is discarded.

        Args:
            samples: number of samples.
            flops: total floating-point operations.
        """
        self.usage.add(samples=samples, flops=flops)

    def limit_within(self, seconds: float) -> bool:
        """True if a limit of time or cost will be reached within some seconds plus the duration of a save.

        Args:
            seconds: time of the next step.
        """
        needed = self.run_seconds + seconds + sum(self._save_seconds.values())
        return self.seconds_max is not None and needed >= self.seconds_max

    @property
    def run_seconds(self) -> float:
        """Seconds of the run so far, over all sessions, from the start of their commands."""
        return self.seconds if self.run_clock is None else self.run_clock()

    @property
    def seconds(self) -> float:
        """Seconds of training so far, earlier sessions included."""
        return self.usage.seconds + self.clock() - self._counted_until

    def add(self, metrics: Metrics, flops: int, where: str) -> None:
        """Record measurements of training.

        Args:
            metrics: the measurements.
            flops: floating-point operations per sample.
            where: position in the run, for the error.

        Raises:
            DivergedError: if the loss is not finite; the message contains `where`.
        """
        if not math.isfinite(metrics.loss):
            raise self.divergence_error(f"the objective became {metrics.loss}", where, metrics.remedy)
        flops *= metrics.samples
        self.usage.add(samples=metrics.samples, flops=flops)
        steady = metrics.details.get(_STEADY, metrics.loss)
        if metrics.mean_weight:
            if self.usage.first_loss is None:
                self.usage.first_loss = steady
            self._trend.add(steady)
        self._meter.add(metrics, flops)

    def restart_means(self, waited_seconds: float) -> None:
        """Restart means.

        Args:
            waited_seconds: total time spent waiting for data so far.
        """
        self._meter.restart(waited_seconds)

    @property
    def is_means_due(self) -> bool:
        """True if the next means are due."""
        return self._meter.seconds >= EVENT_SECONDS

    def means(self, waited_seconds: float) -> Means:
        """Return means since the last call.

        Args:
            waited_seconds: total time spent waiting for data so far.
        """
        return self._meter.take(waited_seconds)

    @property
    def is_save_due(self) -> bool:
        """True if the next checkpoint is due.

        The first is due after `FIRST_SAVE_SECONDS`, each later one after as long as the run had trained
        before, up to ``checkpoint_seconds``. So a crash loses at most half of the training, and at most
        ``checkpoint_seconds``.
        """
        since = self.clock() - self._saved_at
        early = max(
            FIRST_SAVE_SECONDS, self.seconds - since, _SAVES_SHARE * self._save_seconds["checkpoints"]
        )
        return since > min(self.checkpoint_seconds, early)

    def save(
        self,
        number: int,
        pieces: Iterable[TensorChunk | SealedChunk],
        state: Mapping[str, object],
        where: str,
    ) -> Path:
        """Write a checkpoint.

        Args:
            number: orders the checkpoint among others.
            pieces: its tensors.
            state: its further entries; metadata and account are added.
            where: position in the run, for errors.

        Returns:
            Folder of the checkpoint.

        Raises:
            DivergedError: if a tensor has values that are not finite.

        Also raises what `CheckpointManager.save` raises.
        """
        return self.prepare_save(number, pieces, state, where)()

    def prepare_save(
        self,
        number: int,
        pieces: Iterable[TensorChunk | SealedChunk],
        state: Mapping[str, object],
        where: str,
    ) -> Callable[[], Path]:
        """Prepare `save`.

        The account is copied now. The returned function may run in another thread: one at a time, and the
        pieces must not change meanwhile.

        Args:
            number: orders the checkpoint among others.
            pieces: its tensors.
            state: its further entries; metadata and account are added.
            where: position in the run, for errors.

        Returns:
            A function that writes the checkpoint and returns its folder.
        """
        return self._prepare("checkpoints", number, pieces, state, where)

    def save_best(
        self,
        number: int,
        pieces: Iterable[TensorChunk | SealedChunk],
        state: Mapping[str, object],
        where: str,
    ) -> Path:
        """Write the checkpoint with the best validation so far.

        Args:
            number: orders the checkpoint among others.
            pieces: its tensors.
            state: its further entries; metadata and account are added.
            where: position in the run, for errors.

        Returns:
            Folder of the checkpoint.

        Raises:
            DivergedError: if a tensor has values that are not finite.
        """
        return self.prepare_save_best(number, pieces, state, where)()

    def prepare_save_best(
        self,
        number: int,
        pieces: Iterable[TensorChunk | SealedChunk],
        state: Mapping[str, object],
        where: str,
    ) -> Callable[[], Path]:
        """Prepare `save_best`; see `prepare_save`.

        Args:
            number: orders the checkpoint among others.
            pieces: its tensors.
            state: its further entries; metadata and account are added.
            where: position in the run, for errors.

        Returns:
            A function that writes the checkpoint and returns its folder.
        """
        return self._prepare("best", number, pieces, state, where)

    def _prepare(
        self,
        which: Literal["checkpoints", "best"],
        number: int,
        pieces: Iterable[TensorChunk | SealedChunk],
        state: Mapping[str, object],
        where: str,
    ) -> Callable[[], Path]:
        self.add_elapsed()
        kept = {**self.metadata, **state, "account": self.usage.state()}
        into = self.checkpoints if which == "checkpoints" else self.best

        def write() -> Path:
            began = self.clock()
            path = into.save(number, self._check_finite(pieces, where), kept)
            now = self.clock()
            self._save_seconds[which] = now - began
            if which == "checkpoints":
                self._saved_at = now
            return path

        return write

    def resume(self, use: Callable[[Checkpoint], None]) -> Latest:
        """Load the newest usable checkpoint, and its account.

        Args:
            use: loads a checkpoint; if it raises CheckpointError, the previous checkpoint is tried.

        Returns:
            The result of `CheckpointManager.latest`.

        Raises:
            CheckpointError: if there are checkpoints, but none is usable.
        """

        def take(checkpoint: Checkpoint) -> None:
            use(checkpoint)
            self.usage = Usage.from_state(checkpoint.state["account"])

        return self.checkpoints.latest(take)

    def add_elapsed(self) -> None:
        """Add the seconds and bytes since the last call to the account."""
        now = self.clock()
        self.usage.add(seconds=now - self._counted_until, wire_bytes=self.sent_bytes())
        self._counted_until = now

    def end(self, status: str, price: Price, reason: str = "") -> None:
        """Write the last event: status, reason of a failure, account, and warnings.

        It warns if the final loss is far above the initial one.

        Args:
            status: how the run ended.
            price: price of the machine, from the recipe.
            reason: reason of a failure.
        """
        summary = self.usage.summary(price, self.run_seconds)
        # the field seconds of an event is the time of the run
        summary["training_seconds"] = summary.pop("seconds")
        warnings = (
            [] if status == "failed" else [each for each in (self._loss_warning(), self._warned) if each]
        )
        said = {"reason": reason} if reason else {}
        self.event(
            "end", status=status, **said, **({"warning": "; ".join(warnings)} if warnings else {}), **summary
        )

    def _loss_warning(self) -> str:
        """Return a warning about a loss that grew far but stayed finite; empty if it did not."""
        growth = self._trend.growth_from(self.usage.first_loss)
        return f"{growth}; {self.remedy}" if growth else ""

    def divergence_error(self, what: str, where: str, remedy: str = "") -> DivergedError:
        """Return the error of a run whose numbers are not finite.

        Args:
            what: what became not finite.
            where: position in the run.
            remedy: advice [the recorder's remedy].
        """
        paths = self.checkpoints.paths()
        kept = f"the last valid checkpoint is {paths[-1]}" if paths else "no checkpoint was written yet"
        return DivergedError(f"{what} at {where}; {kept}; {remedy or self.remedy}")

    def allow_nonfinite(self, tensors: Mapping[str, Tensor]) -> None:
        """Allow infinities and NaN that tensors contain before training, such as a mask of -inf.

        Args:
            tensors: the tensors by name.
        """
        self._allowed_nonfinite = {
            name: found for name, each in tensors.items() if (found := kinds_not_finite(each))
        }

    def _check_finite(
        self, pieces: Iterable[TensorChunk | SealedChunk], where: str
    ) -> Iterator[TensorChunk | SealedChunk]:
        for piece in pieces:
            if isinstance(piece, TensorChunk) and kinds_not_finite(
                piece.tensor
            ) - self._allowed_nonfinite.get(piece.name, set()):
                raise self.divergence_error(f"{piece.name} has values that are not finite", where)
            yield piece

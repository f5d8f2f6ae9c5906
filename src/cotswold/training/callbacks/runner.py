"""The callbacks of one process of a run: their calls, their state in checkpoints, the end that one requests.

Knows: that an error of a callback must not change the run. Does not know: any one callback, when a hook is
called.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cotswold.checkpoint import Checkpoint, TensorChunk
from cotswold.run import NoLog, Stop
from cotswold.run.events import Log
from cotswold.training.callbacks.base import (
    HOOKS,
    Callback,
    CallbackContext,
    Status,
    StopTraining,
    overrides,
)
from cotswold.training.callbacks.functions import warn
from cotswold.training.strategies.base import Batch

_STATE, CALLBACK_END = "callbacks", "callback_end"
"""The keys in a checkpoint's state: the states of callbacks, and the end that one requested."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class TrainingState:
    """The part of a callback's context that the trainer knows.

    Args:
        step: The steps so far.
        epoch: The complete epochs so far.
        module: The network, if it is in this process.
        optimizer: The optimiser, if there is one in this process.
        batch: The last batch, if this process draws them.
        metrics: The newest measurements by name.
    """

    step: int = 0
    epoch: int = 0
    module: nn.Module | None = None
    optimizer: Optimizer | None = None
    batch: Batch | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CallbackEnd:
    """The callback that ended a run, and its reason."""

    name: str
    reason: str


class CallbackRunner:
    """Calls callbacks in their order; one that raises is reported and called no more.

    Random states are restored after each call, so a callback that draws does not change the run.
    """

    def __init__(
        self, callbacks: Sequence[Callback] = (), run: Path = Path(), stop: Stop | None = None, rank: int = 0
    ) -> None:
        self._run, self._stop, self._is_main = run, stop or Stop(), rank == 0
        self._all = _by_name(callbacks)
        called = {name: each for name, each in self._all.items() if self._is_main or each.every_rank}
        self._listeners = {
            hook: [name for name, each in called.items() if overrides(each, hook)] for hook in HOOKS
        }
        self._saved = [name for name, each in called.items() if overrides(each, "state_dict")]
        self.log: Log = NoLog()
        self.source: Callable[[], TrainingState] = TrainingState
        self.ended: CallbackEnd | None = None
        """The callback that ended the run, in this process."""
        self.complete_reason: str | None = None
        """The reason why a resumed run, which a callback ended, has nothing to train."""
        self.loaded_end: CallbackEnd | None = None
        """The callback that ended the resumed run, if it has nothing to train."""
        self.has_loaded_end = False
        """True if a callback ended the resumed run and no more is planned; the same on all ranks."""

    @property
    def active(self) -> list[Callback]:
        """The callbacks that have not failed, in order, also those that only other ranks call."""
        return list(self._all.values())

    def hears(self, hook: str) -> bool:
        """Return True if a callback listens to a hook."""
        return bool(self._listeners[hook])

    @property
    def needs_batches(self) -> bool:
        """True if a callback listens to a moment at which the last batch is known."""
        return any(names for hook, names in self._listeners.items() if hook != "on_event")

    def call(self, hook: str, *, checkpoint: Path | None = None, status: Status = "running") -> None:
        """Call a hook of all callbacks."""
        if not self._listeners[hook]:
            return
        now = self.source()
        context = CallbackContext(
            run=self._run,
            module=now.module,
            optimizer=now.optimizer,
            batch=now.batch,
            step=now.step,
            epoch=now.epoch,
            metrics=MappingProxyType(dict(now.metrics)),
            stop=self._stop,
            event=self.log.write,
            checkpoint=checkpoint,
            status=status,
        )
        for name in [*self._listeners[hook]]:
            function = getattr(self._all[name], hook)
            self._guard(name, partial(function, context))

    def write(self, event: Mapping[str, object]) -> None:
        """Pass an event to the callbacks."""
        for name in [*self._listeners["on_event"]]:
            function = self._all[name].on_event
            self._guard(name, partial(function, event))

    # ---- checkpoints

    def state(self, planned: float) -> tuple[dict[str, object], list[TensorChunk]]:
        """Return the entries of a checkpoint, empty without any, and the tensors in it.

        ``planned`` is the amount of training that is planned, in any unit.
        """
        kept: dict[str, object] = {}
        pieces: list[TensorChunk] = []
        for name in [*self._saved] if self._is_main else ():
            found = self._guard(name, partial(_state_of, self._all[name]))
            if found is not None and any(found):
                values, tensors = found
                kept[name] = {"values": values, "tensors": list(tensors)}
                pieces += [TensorChunk(_tensor_name(name, key), each) for key, each in tensors.items()]
        entries: dict[str, object] = {_STATE: kept} if kept else {}
        if self.ended is not None:
            entries[CALLBACK_END] = {**vars(self.ended), "planned": planned}
        return entries, pieces

    def load(self, checkpoint: Checkpoint, planned: float) -> None:
        """Restore the states in a checkpoint; callbacks that it does not name keep theirs."""
        states = checkpoint.state.get(_STATE)
        for name, kept in states.items() if isinstance(states, dict) else ():
            if name in self._all:
                state = {key: checkpoint.read(_tensor_name(name, key)) for key in kept["tensors"]}
                self._guard(name, partial(self._all[name].load_state_dict, {**kept["values"], **state}))
        ended = checkpoint.state.get(CALLBACK_END)
        self.complete_reason, self.loaded_end, self.has_loaded_end = None, None, False
        if not isinstance(ended, dict) or planned > ended["planned"]:
            return
        self.has_loaded_end = True
        by = self._all.get(ended["name"])
        if by is not None and not self._guard(ended["name"], by.may_continue):
            self.loaded_end = CallbackEnd(ended["name"], ended["reason"])
            self.complete_reason = (
                f"{ended['name']} ended the run ({ended['reason']}); more training continues it, and so does "
                "a resume without this callback"
            )

    # ---- protection

    def _guard(self, name: str, function: Callable[[], _Result]) -> _Result | None:
        try:
            with preserved_random_states():
                return function()
        except StopTraining as request:
            if self.ended is None:
                self.ended = CallbackEnd(name, request.reason or f"requested by {name}")
        except KeyboardInterrupt:
            if not self._stop.interrupt():
                raise  # a second one leaves at once
        except Exception as error:  # an error of the user's code must not stop the run
            self._drop(name, error)
        return None

    def _drop(self, name: str, error: Exception) -> None:
        for names in (*self._listeners.values(), self._saved):
            if name in names:
                names.remove(name)
        self._all.pop(name, None)
        said = f"{type(error).__name__}: {error}"
        warn(f"the callback {name} raised {said}; it is called no more in this run")
        self.log.write("callback_failed", callback=name, error=said)


def _by_name(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Return callbacks by name; the second of a name has the suffix ``-2``."""
    found: dict[str, Callback] = {}
    for each in callbacks:
        name, count = each.name, 1
        while name in found:
            count += 1
            name = f"{each.name}-{count}"
        found[name] = each
    return found


def _tensor_name(callback: str, key: str) -> str:
    return f"{_STATE}.{callback}.{key}"


def _state_of(callback: Callback) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Return the values and the tensors of a state; raises TypeError or ValueError for other values."""
    state = callback.state_dict()
    tensors = {name: each.detach() for name, each in state.items() if isinstance(each, Tensor)}
    values = {name: each for name, each in state.items() if name not in tensors}
    restored: dict[str, object] = json.loads(json.dumps(values, allow_nan=False))
    return restored, tensors


@contextmanager
def preserved_random_states() -> Iterator[None]:
    """Restore the random states of torch, NumPy and Python at the end of a `with` block."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    devices = torch.cuda.get_rng_state_all() if used else []
    host, array, plain = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(host)
        np.random.set_state(array)
        random.setstate(plain)
        if devices:
            torch.cuda.set_rng_state_all(devices)

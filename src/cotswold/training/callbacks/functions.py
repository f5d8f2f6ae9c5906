"""Functions as callbacks: receivers of a run's events.

Knows: that an error of a user's function must not stop a run. Does not know: the kinds of events.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING

from cotswold.errors import UserError
from cotswold.training.callbacks.base import HOOKS, Callback

if TYPE_CHECKING:
    from cotswold.run import Stop

OnEvent = Callable[[Mapping[str, object]], object]
"""A function that receives every event of a run as it is written."""


class FunctionCallback(Callback):
    """A function as a callback, which receives every event.

    Args:
        function: The function.
    """

    def __init__(self, function: OnEvent) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self._function, "__name__", type(self._function).__name__))

    def on_event(self, event: Mapping[str, object]) -> None:
        """Pass the event to the function.

        Args:
            event: The event.
        """
        self._function(event)


def as_callbacks(given: Iterable[Callback | OnEvent]) -> tuple[Callback, ...]:
    """Return callbacks, with functions wrapped; raises UserError for other objects."""
    if isinstance(given, Callback) or not isinstance(given, Iterable):
        raise UserError(f"callbacks must be a list of callbacks or functions, got {given!r:.80}")
    found = []
    for each in given:
        if isinstance(each, type):
            raise UserError(f"{each.__name__} is a class; give an instance: {each.__name__}(...)")
        if not isinstance(each, Callback) and not callable(each):
            raise UserError(
                f"{each!r:.80} is not a callback; derive it from cotswold.callbacks.Callback, or give a "
                "function of an event"
            )
        if isinstance(each, Callback):
            _check_hooks(each)
        found.append(each if isinstance(each, Callback) else FunctionCallback(each))
    return tuple(found)


def _check_hooks(callback: Callback) -> None:
    """Raise UserError for a method that is named like a hook and is none."""
    for name in dir(type(callback)):
        if name.startswith("on_") and name not in HOOKS:
            close = get_close_matches(name, HOOKS, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UserError(
                f"{type(callback).__name__}.{name} is no hook of callbacks and would never be called{hint}. "
                f"The hooks are {', '.join(HOOKS)}"
            )


class GuardedFunction:
    """A function of events; after an exception it receives no more, with a warning.

    A KeyboardInterrupt in it asks the run to stop after its step, as Ctrl-C does.
    """

    def __init__(self, function: OnEvent, stop: Stop) -> None:
        self._function: OnEvent | None = function
        self._stop = stop

    def __call__(self, event: Mapping[str, object]) -> None:
        """Pass an event to the function."""
        if self._function is None:
            return
        try:
            self._function(event)
        except KeyboardInterrupt:
            if not self._stop.interrupt():
                raise  # a second one leaves at once
        except Exception as error:  # an error of the user's code must not stop the run
            self._function = None
            warn(f"on_event raised {type(error).__name__}: {error}; it receives no more events of this run")


class EventObserver:
    """An observer of the event log that passes events to a function."""

    def __init__(self, name: str, function: OnEvent) -> None:
        self._name, self._function = name, function

    @property
    def name(self) -> str:
        """The name of the receiver."""
        return self._name

    def write(self, event: Mapping[str, object]) -> None:
        """Pass on an event."""
        self._function(event)

    def close(self) -> None:
        """Do nothing: a function holds no resources."""


def warn(sentence: str) -> None:
    """Warn; a program that turns warnings into errors loses the warning, not the run."""
    with suppress(RuntimeWarning):
        warnings.warn(sentence, RuntimeWarning, stacklevel=3)

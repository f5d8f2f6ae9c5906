"""A mistake planted temporarily in a state machine.

Knows: a method and its wrong version. Does not know: the list of mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

_Any = Any
"""Stands for number types: patched machines accept any."""


@dataclass(frozen=True)
class Fault:
    """One planted mistake."""

    sentence: str
    of: type
    method: str
    wrong: Callable[[Callable[..., _Any]], Callable[..., _Any]]
    """Makes the wrong method from the right one."""
    also: Fault | None = None
    """Another mistake, for a pair that is harmless alone."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Patch the machine inside the context."""
        right = self.of.__dict__[self.method]
        setattr(self.of, self.method, self.wrong(right))
        with ExitStack() as others:
            others.callback(setattr, self.of, self.method, right)
            if self.also is not None:
                others.enter_context(self.also.planted())
            yield


def never(_: Callable[..., _Any]) -> Callable[..., _Any]:
    """Return a predicate that is never true."""
    return lambda *_: False


def always(_: Callable[..., _Any]) -> Callable[..., _Any]:
    """Return a predicate that is always true."""
    return lambda *_: True

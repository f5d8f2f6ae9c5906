"""A mistake that is planted in a machine for a while.

Knows: a method, and how it is made wrong. Does not know: which mistakes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

_Any = Any
"""Machines are patched whatever their numbers are."""


@dataclass(frozen=True)
class Fault:
    """One of them."""

    sentence: str
    of: type
    method: str
    wrong: Callable[[Callable[..., _Any]], Callable[..., _Any]]
    """Given the right method, the wrong one."""
    also: Fault | None = None
    """Another mistake, where either alone does no harm."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While this lasts the machine is wrong."""
        right = self.of.__dict__[self.method]
        setattr(self.of, self.method, self.wrong(right))
        with ExitStack() as others:
            others.callback(setattr, self.of, self.method, right)
            if self.also is not None:
                others.enter_context(self.also.planted())
            yield


def never(_: Callable[..., _Any]) -> Callable[..., _Any]:
    """What is asked is never so."""
    return lambda *_: False


def always(_: Callable[..., _Any]) -> Callable[..., _Any]:
    """What is asked is always so."""
    return lambda *_: True

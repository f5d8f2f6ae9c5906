"""A mistake that is planted in a machine for a while.

Knows: a method, and how it is made wrong. Does not know: which mistakes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While this lasts the machine is wrong."""
        right = self.of.__dict__[self.method]
        setattr(self.of, self.method, self.wrong(right))
        try:
            yield
        finally:
            setattr(self.of, self.method, right)

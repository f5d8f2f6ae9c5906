"""Vectors that an optimiser commands by name and never sees: whoever has them answers with scalars.

Knows: the commands and what each means. Does not know: where the numbers are (tensors, parts of tensors on
ranks, shards on other processes), what is minimised.

A method that is written against `Vectors` is written once for all of them. Commands that are given together
travel together: one round of messages, one reduction for all dots, so a method asks for everything that it
can foresee at once (Dean et al. 2012, section 4.2: the coordinator sends commands, and sees no vector).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Combine:
    """``out`` ← Σ factor · vector, added in the order of ``terms``.

    ``out`` may be one of them, for all are read before it is written; it is made where it is new. No terms
    make zeros.
    """

    out: str
    terms: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Multiply:
    """``out`` ← ``left`` · ``right``, element by element."""

    out: str
    left: str
    right: str


@dataclass(frozen=True)
class Dot:
    """The inner product of two vectors, which the round answers with.

    In float64, blocks added in their order, so that no cut over processes changes a bit.
    """

    left: str
    right: str


@dataclass(frozen=True)
class Drop:
    """A vector is used no more; one that is not there is no error."""

    name: str


Command = Combine | Multiply | Dot | Drop


class Vectors(Protocol):
    """Vectors of one length, each with a name."""

    @property
    def epsilon(self) -> float:
        """From 1 to the next number: 2^-23 in float32, 2^-52 in float64. How far values can be trusted."""
        ...

    def run(self, commands: Sequence[Command]) -> list[float]:
        """Do as commanded, in this order, in one round; the values of the dots among them, in their order.

        Raises KeyError for a name that no vector has.
        """
        ...

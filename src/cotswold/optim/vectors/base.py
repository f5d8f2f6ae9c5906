"""Commands on named vectors: an optimiser sends commands and receives scalars, never vectors.

Knows: the commands and their meaning. Does not know: where the numbers are stored (tensors, parts of tensors
on ranks, shards on other processes), the objective.

A method written against `Vectors` runs on all of them. Commands that are given together travel together: one
round of messages and one reduction for all dots. So a method sends everything it can foresee in one round
(Dean et al. 2012, section 4.2: the coordinator sends commands and sees no vector).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Combine:
    """``target`` ← Σ factor · vector, added in the order of ``terms``.

    All terms are read before ``target`` is written, so ``target`` may be one of them. A new ``target`` is
    created. No terms give zeros.

    Args:
        target: name of the vector that receives the sum.
        terms: factors and names of vectors.
    """

    target: str
    terms: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Multiply:
    """``target`` ← ``left`` · ``right``, element by element; the arguments are names of vectors."""

    target: str
    left: str
    right: str


@dataclass(frozen=True)
class Dot:
    """Inner product of the vectors named ``left`` and ``right``; the round returns it.

    Computed in float64 over blocks in order, so that the split over processes does not change a bit.
    """

    left: str
    right: str


@dataclass(frozen=True)
class Drop:
    """Delete a named vector; an unknown name is no error."""

    name: str


Command = Combine | Multiply | Dot | Drop
"""Command on named vectors."""


class Vectors(Protocol):
    """Named vectors of one length."""

    @property
    def epsilon(self) -> float:
        """Relative precision: the distance from 1 to the next number, 2^-23 in float32, 2^-52 in float64."""
        ...

    def run(self, commands: Sequence[Command]) -> list[float]:
        """Run commands in order, in one round.

        Args:
            commands: the commands of one round.

        Returns:
            The results of the `Dot` commands, in order.

        Raises:
            KeyError: if a command reads a vector that does not exist.
        """
        ...

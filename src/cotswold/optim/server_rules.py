"""What a parameter server does with what replicas push: deltas added up, SGD, momentum, Adagrad.

Knows: formulas, their settings and limits, which vectors a rule keeps beside the weights. Does not know:
tensors, shards, messages; whoever holds the numbers does the arithmetic.

In all formulas w are the weights of a shard, g a gradient that was pushed, Δ a difference of weights, η the
rate of the push. Pushes are applied in their order: several at once give the same bits as one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

EPSILON_LEAST = 2.0**-126
"""The least positive number that float32 holds in full; what is less may be 0 there."""


@dataclass(frozen=True)
class Deltas:
    """``w ← w + s·Δ``: what a replica has moved its own copy by, times the scale s of the push.

    For replicas that take steps of their own between pushes (Chilimbi et al. 2014, section 3.3; Recht et al.
    2011, Hogwild). It has no settings.
    """

    name: ClassVar[str] = "deltas"
    keeps: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Sgd:
    """``w ← w − η·g``: one step of gradient descent a push (Dean et al. 2012, section 4.1, Downpour SGD).

    It has no settings; the rate comes with each push.
    """

    name: ClassVar[str] = "sgd"
    keeps: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Momentum:
    """``v ← μ·v − η·g``, ``w ← w + v``: classical momentum (Polyak 1964), v shared by all replicas.

    Every push is one step of it, so with n replicas v forgets n times as fast in time.
    """

    momentum: float
    """μ, the part of the last step that is kept: from 0 (which is `Sgd`) to below 1."""

    name: ClassVar[str] = "momentum"
    keeps: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        """Raises ValueError for a momentum that is not from 0 to below 1."""
        if not 0 <= self.momentum < 1:
            raise ValueError(f"a momentum of {self.momentum}; it must be from 0 to below 1")


@dataclass(frozen=True)
class Adagrad:
    """``a ← a + g²``, ``w ← w − η·g/(√a + ε)``: a rate for every weight (Duchi et al. 2011).

    The accumulator a is shared by all replicas, as in Dean et al. 2012, section 4.1: η_i = γ/√(Σ g_i²). It is
    for gradients; squares of accumulated deltas are no estimate of theirs.
    """

    epsilon: float = 1e-10
    """ε, which a weight without gradients so far is not divided by 0 for; from 2⁻¹²⁶ on, so that it is above
    0 in float32 too."""

    name: ClassVar[str] = "adagrad"
    keeps: ClassVar[tuple[str, ...]] = ("squares",)

    def __post_init__(self) -> None:
        """Raises ValueError for an epsilon below 2⁻¹²⁶, or that is no finite number."""
        if not (isfinite(self.epsilon) and self.epsilon >= EPSILON_LEAST):
            raise ValueError(
                f"an epsilon of {self.epsilon}; it must be a finite number, {EPSILON_LEAST:.3g} at least"
            )


Rule = Deltas | Sgd | Momentum | Adagrad
"""What a shard does with pushes. ``name`` is its word in recipes; ``keeps`` names the further vectors of a
shard that it needs, each as long as the weights and of zeros at first."""

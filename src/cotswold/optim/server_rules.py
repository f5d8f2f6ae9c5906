"""Update rules of a parameter server: summed deltas, SGD, momentum, Adagrad.

Knows: formulas, their settings and limits, the vectors a rule keeps along with the weights. Does not know:
tensors, shards, messages; the process that holds the numbers does the arithmetic.

In all formulas w are the weights of a shard, g a pushed gradient, Δ a difference of weights, η the learning
rate of the push. Pushes are applied in order: several at once give the same bits as one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

EPSILON_LEAST = 2.0**-126
"""Smallest positive normal number of float32; a smaller one may become 0."""


@dataclass(frozen=True)
class AddUpdate:
    """``w ← w + s·Δ``: add a replica's weight change, times the scale s of the push.

    For replicas that take local steps between pushes. It has no settings.

    Source: Chilimbi et al. 2014, section 3.3; Recht et al. 2011 (Hogwild).
    """

    name: ClassVar[str] = "deltas"
    state_names: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Sgd:
    """``w ← w − η·g``: one step of gradient descent per push.

    It has no settings; the learning rate comes with each push.

    Source: Dean et al. 2012, section 4.1 (Downpour SGD).
    """

    name: ClassVar[str] = "sgd"
    state_names: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Momentum:
    """``v ← μ·v − η·g``, ``w ← w + v``: classical momentum, with one v for all replicas.

    Every push is one step, so with n replicas v decays n times as fast in time.

    Args:
        momentum: μ, from 0 (the same as `Sgd`) to below 1.

    Raises:
        ValueError: if `momentum` is out of range.

    Source: Polyak 1964.
    """

    momentum: float
    """Fraction μ of the last step that is kept: from 0 (the same as `Sgd`) to below 1."""

    name: ClassVar[str] = "momentum"
    state_names: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be from 0 to below 1, got {self.momentum}")


@dataclass(frozen=True)
class Adagrad:
    """``a ← a + g²``, ``w ← w − η·g/(√a + ε)``: a learning rate for every weight.

    All replicas share the accumulator a: η_i = γ/√(Σ g_i²). The rule is for gradients; squares of accumulated
    deltas do not estimate theirs.

    Args:
        epsilon: ε, a finite number of at least 2⁻¹²⁶.

    Raises:
        ValueError: if `epsilon` is out of range.

    Source: Duchi et al. 2011; Dean et al. 2012, section 4.1.
    """

    epsilon: float = 1e-10
    """ε avoids a division by 0 for weights without gradients so far. At least 2⁻¹²⁶, so that it is above 0 in
    float32 too.
    """

    name: ClassVar[str] = "adagrad"
    state_names: ClassVar[tuple[str, ...]] = ("squares",)

    def __post_init__(self) -> None:
        if not (isfinite(self.epsilon) and self.epsilon >= EPSILON_LEAST):
            raise ValueError(
                f"epsilon must be a finite number of at least {EPSILON_LEAST:.3g}, got {self.epsilon}"
            )


Rule = AddUpdate | Sgd | Momentum | Adagrad
"""Update rule of a shard. ``name`` is its name in recipes; ``state_names`` are the names of the further
vectors of a shard that it needs, each as long as the weights and initially zero.
"""

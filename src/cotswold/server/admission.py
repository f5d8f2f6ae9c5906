"""Whether an update is what its fields say, and its numbers where it is.

Knows: rules and which kinds they take, shards, factors. Does not know: sessions, numbers, queues.

    kind        rule                       why not otherwise
    delta       Deltas                     Adagrad on deltas: their squares are no estimate of the gradient's
    gradient    Sgd, Momentum, Adagrad     Deltas has no rate
    factors     the same                   a product is a gradient
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Generic, Protocol

from cotswold.optim.updates import Deltas, Rule
from cotswold.server.messages import Shard, Update
from cotswold.server.ranges import are_apart
from cotswold.server.shard import Values

KINDS = ("gradient", "delta", "factors")


@dataclass(frozen=True, eq=False)
class Factors(Generic[Values]):
    """A block of a gradient that was pushed as factors: (row, column) = errorsᵀ · activations, row major."""

    errors: Values
    """(example, row)"""
    activations: Values
    """(example, column); may be those of other shards of the tensor too."""
    examples: int


class UpdateArithmetic(Protocol[Values]):
    """What is done with updates of a shard, besides `Arithmetic`."""

    def take(self, buffer: object, size: int) -> Values:
        """What came in a message, only to be read; it may lie in the message's own memory, which it keeps.

        Raises ValueError where it is no such vector.
        """
        ...

    def apply(
        self,
        rule: Rule,
        weights: Values,
        kept: Sequence[Values],
        pushes: Sequence[tuple[float, Values | Factors[Values]]],
        columns: int,
        unit_norm: bool,
    ) -> None:
        """All pushes, in order, in one pass over the shard: each is (η or s, what is pushed); in place.

        With ``unit_norm`` each row of ``columns`` numbers is scaled to norm 1 afterwards.
        """
        ...

    def is_finite(self, pushed: Values | Factors[Values]) -> bool:
        """Whether all numbers are finite, and so is the sum of their squares, in float64.

        Of factors: the product of both sums, which bounds every number of their gradient.
        """
        ...


class RefusedError(ValueError):
    """What is wrong with an update: a word that says which kind of mistake it is, then a sentence."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"{kind}: {why}")


class Admission(Generic[Values]):
    """What a server's shards take."""

    def __init__(
        self,
        shards: Sequence[Shard],
        columns: Mapping[str, int],
        rule: Rule,
        updates: UpdateArithmetic[Values],
    ) -> None:
        self._shards = {shard.number: shard for shard in shards}
        self._columns, self._rule = columns, rule
        self._updates = updates

    def check(self, update: Update, rates: Mapping[int, float]) -> None:
        """Raises RefusedError for an update that cannot be one of this server's; reads no number of it."""
        if update.kind not in KINDS:
            raise RefusedError("kind", f"there is no kind {update.kind!r} of update")
        if (update.kind == "delta") is not isinstance(self._rule, Deltas):
            raise RefusedError("kind", _unfit(update.kind, self._rule))
        if update.kind != "delta" and update.rate not in rates:
            raise RefusedError("rate", f"there is no version {update.rate} of the learning rate")
        if not isfinite(update.scale):
            raise RefusedError("finite", f"its scale is {update.scale}")
        if not are_apart(update.samples):
            raise RefusedError("samples", "its ranges of samples are not ascending and apart")
        strange = sorted(set(update.shards) - self._shards.keys())
        if strange:
            raise RefusedError("shard", f"shards {strange} are not here")
        if len(set(update.shards)) != len(update.shards):
            raise RefusedError("shard", "it names a shard twice")
        if len(update.versions) != len(update.shards):
            raise RefusedError("length", f"{len(update.versions)} versions of {len(update.shards)} shards")
        wanted = len(update.shards) if update.kind == "factors" else 0
        if len(update.examples) != wanted or min(update.examples, default=0) < 0:
            raise RefusedError("length", f"examples {list(update.examples)} of {wanted} shards with factors")
        buffers = len(update.shards) + len(self._tensors(update))
        if len(update.buffers) != buffers:
            raise RefusedError("length", f"{len(update.buffers)} buffers where {buffers} are due")

    def size(self, update: Update) -> dict[int, int]:
        """How many numbers are kept for each shard while such an update waits."""
        examples = update.examples or (0,) * len(update.shards)
        return dict(zip(update.shards, map(self._size, update.shards, examples), strict=True))

    def _size(self, number: int, examples: int) -> int:
        shard = self._shards[number]
        size, columns = shard.stop - shard.start, self._columns[shard.tensor]
        return examples * (size // columns + columns) if examples else size

    def read(self, update: Update) -> list[Values | Factors[Values]]:
        """The gradient, delta or factors of each shard, only to be read.

        Raises RefusedError for a buffer of the wrong length, and for numbers that are not finite.
        """
        examples = update.examples or (0,) * len(update.shards)
        tensors = self._tensors(update)
        try:
            activations = {
                tensor: self._updates.take(buffer, count * self._columns[tensor])
                for (tensor, count), buffer in zip(
                    tensors.items(), update.buffers[len(update.shards) :], strict=True
                )
            }
            found: list[Values | Factors[Values]] = []
            for number, count, buffer in zip(update.shards, examples, update.buffers, strict=False):
                shard = self._shards[number]
                size = shard.stop - shard.start
                if count:
                    errors = self._updates.take(buffer, count * (size // self._columns[shard.tensor]))
                    found.append(Factors(errors, activations[shard.tensor], count))
                else:
                    found.append(self._updates.take(buffer, size))
        except ValueError as error:
            raise RefusedError("length", str(error)) from error
        for number, pushed in zip(update.shards, found, strict=True):
            if not self._updates.is_finite(pushed):
                raise RefusedError("finite", f"shard {number} has numbers that are not finite")
        return found

    def _tensors(self, update: Update) -> dict[str, int]:
        """The tensors that come as factors, each with its number of examples."""
        found: dict[str, int] = {}
        for number, examples in zip(update.shards, update.examples, strict=False):
            tensor = self._shards[number].tensor
            if examples and found.setdefault(tensor, examples) != examples:
                raise RefusedError("length", f"factors of {tensor!r} have different numbers of examples")
        return found


def _unfit(kind: str, rule: Rule) -> str:
    if isinstance(rule, Deltas):
        return f"the rule here adds up deltas, and takes no {kind}: it has no learning rate"
    if rule.keeps == ("squares",):
        return (
            "Adagrad divides by the root of the sum of squared gradients, and the squares of accumulated "
            "deltas are no such: push gradients"
        )
    return f"the rule {rule.name} here takes gradients, and a delta is none"

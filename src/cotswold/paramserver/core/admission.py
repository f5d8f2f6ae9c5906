"""Whether an update is what its fields say, and its numbers where it is.

Knows: rules and which kinds they take, shards, factors. Does not know: sessions, numbers, queues.

    kind        rule                       why not otherwise
    delta       Deltas                     Adagrad on deltas: their squares are no estimate of the gradient's
    gradient    Sgd, Momentum, Adagrad     Deltas has no rate
    factors     the same                   a product is a gradient

Factors of a matrix are errors (examples, rows) and activations (examples, columns). Those of a tensor that is
none, such as the filters of a locally connected layer, are as its `Product` has them; there the activations
are what all rows of the update together need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Generic, Protocol, TypeVar

from cotswold.optim.server_rules import AddUpdate, Rule
from cotswold.shards.core.shard_server import Arithmetic, Values
from cotswold.wire import Shard, Update
from cotswold.wire.ranges import are_apart

KINDS = ("gradient", "delta", "factors")
Held = TypeVar("Held", covariant=True)


@dataclass(frozen=True, eq=False)
class Factors(Generic[Held]):
    """A block of a gradient that was pushed as factors: (row, column) = errorsᵀ · activations, row major."""

    errors: Held
    """(example, row)"""
    activations: Held
    """(example, column); may be those of other shards of the tensor too."""
    examples: int


@dataclass(frozen=True, eq=False)
class Pass(Generic[Values]):
    """What is applied to a shard in one pass: pushes in their order, one at least."""

    weights: Values
    kept: Sequence[Values]
    """The vectors that the rule keeps, in its order."""
    pushes: Sequence[tuple[float, Values | Factors[Values]]]
    """(η or s, what is pushed)"""
    columns: int
    """Numbers of a row."""
    unit_norm: bool = False
    """Whether each row is scaled to norm 1 afterwards."""


class UpdateArithmetic(Protocol[Values]):
    """What is done with updates of a shard, besides `Arithmetic`."""

    def apply(self, rule: Rule, passes: Sequence[Pass[Values]]) -> None:
        """All of them, of several shards, in place."""
        ...

    def first_not_finite(self, pushed: Sequence[Values | Factors[Values]]) -> int | None:
        """The first place where not all numbers are finite, or the sum of their squares in their own type is
        not; None where there is none.

        Of factors: the product of both sums, which bounds every number of their gradient.
        """
        ...

    def product(self, factors: Factors[Values]) -> Values:
        """The block of a gradient that factors stand for, in memory of its own."""
        ...


class Product(Protocol[Values]):
    """What is to be known of a tensor that is no matrix: how its gradient is made of factors, what of it has
    norm 1 where filters do."""

    @property
    def start(self) -> int:
        """Where the tensor begins in the vector."""
        ...

    def errors(self, first: int, stop: int) -> int:
        """Numbers of an example's errors, for these rows."""
        ...

    def activations(self, first: int, stop: int) -> int:
        """Numbers of an example's activations that these rows need."""
        ...

    def gradient(
        self, errors: Values, activations: Values, rows: tuple[int, int], seen_by: tuple[int, int]
    ) -> Values:
        """Of some rows, from their errors and the activations that those of ``seen_by`` need."""
        ...

    def scale_to_norm_1(self, weights: Values) -> None:
        """Each filter of some rows, in place; one of zeros, or that is not finite, stays as it is."""
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
        arithmetic: Arithmetic[Values],
        updates: UpdateArithmetic[Values],
        products: Mapping[str, Product[Values]] | None = None,
    ) -> None:
        """``products``: of tensors that are no matrices."""
        self._shards = {shard.number: shard for shard in shards}
        self._columns, self._rule = columns, rule
        self._arithmetic, self._updates, self._products = arithmetic, updates, dict(products or {})

    def check(self, update: Update, rates: Mapping[int, float]) -> None:
        """Raises RefusedError for an update that cannot be one of this server's; reads no number of it."""
        if update.kind not in KINDS:
            raise RefusedError("kind", f"there is no kind {update.kind!r} of update")
        if (update.kind == "delta") is not isinstance(self._rule, AddUpdate):
            raise RefusedError("kind", _unfit(update.kind, self._rule))
        if update.kind != "delta" and update.rate not in rates:
            raise RefusedError("rate", f"there is no version {update.rate} of the learning rate")
        for what, number in (("scale", update.scale), ("decay", update.decay)):
            if not isfinite(number):
                raise RefusedError("finite", f"its {what} is {number}")
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
        return {
            number: self._size(number, count, update.decay)
            for number, count in zip(update.shards, examples, strict=True)
        }

    def _size(self, number: int, examples: int, decay: float) -> int:
        shard = self._shards[number]
        size, columns = shard.stop - shard.start, self._columns[shard.tensor]
        return examples * (size // columns + columns) if self._stays(shard, examples, decay) else size

    def _stays(self, shard: Shard, examples: int, decay: float) -> bool:
        """Whether factors stay factors until they are applied."""
        return bool(examples) and not decay and shard.tensor not in self._products

    def read(self, update: Update, weights: Mapping[int, Values]) -> list[Values | Factors[Values]]:
        """The gradient, delta or factors of each shard, only to be read; factors of what is no matrix, and
        those to which weights are added, are multiplied.

        ``weights`` of each shard are those that decay where its gradient comes as factors. Raises
        RefusedError for a buffer of the wrong length, and for numbers that are not finite.
        """
        examples = update.examples or (0,) * len(update.shards)
        factored = self._tensors(update)
        try:
            activations = {
                tensor: (self._arithmetic.take(buffer, count * self._seen(tensor, rows)), rows)
                for (tensor, (count, rows)), buffer in zip(
                    factored.items(), update.buffers[len(update.shards) :], strict=True
                )
            }
            found: list[Values | Factors[Values]] = []
            for number, count, buffer in zip(update.shards, examples, update.buffers, strict=False):
                shard = self._shards[number]
                if count:
                    seen = activations[shard.tensor]
                    found.append(self._factored(update, shard, count, buffer, *seen, weights[number]))
                else:
                    found.append(self._arithmetic.take(buffer, shard.stop - shard.start))
        except ValueError as error:
            raise RefusedError("length", str(error)) from error
        place = self._updates.first_not_finite(found)  # nor numbers of which no rule can take squares
        if place is not None:
            number = update.shards[place]
            raise RefusedError(
                "finite", f"shard {number} has numbers that are not finite, or whose squares are not"
            )
        return found

    def _factored(
        self,
        update: Update,
        shard: Shard,
        examples: int,
        buffer: object,
        activations: Values,
        seen_by: tuple[int, int],
        weights: Values,
    ) -> Values | Factors[Values]:
        product, (first, stop) = self._products.get(shard.tensor), self._rows(shard)
        if product is not None:
            errors = self._arithmetic.take(buffer, examples * product.errors(first, stop))
            gradient = product.gradient(errors, activations, (first, stop), seen_by)
        else:
            factors = Factors(self._arithmetic.take(buffer, examples * (stop - first)), activations, examples)
            if not update.decay:
                return factors
            gradient = self._updates.product(factors)
        if update.decay:
            gradient = self._arithmetic.combine([(1.0, gradient), (update.decay, weights)], gradient)
        return gradient

    def _seen(self, tensor: str, rows: tuple[int, int]) -> int:
        """Numbers of an example's activations."""
        product = self._products.get(tensor)
        return self._columns[tensor] if product is None else product.activations(*rows)

    def _rows(self, shard: Shard) -> tuple[int, int]:
        """Rows of its tensor; of a matrix, from some row on."""
        product, columns = self._products.get(shard.tensor), self._columns[shard.tensor]
        start = 0 if product is None else product.start
        return (shard.start - start) // columns, (shard.stop - start) // columns

    def _tensors(self, update: Update) -> dict[str, tuple[int, tuple[int, int]]]:
        """The tensors that come as factors, each with its number of examples, and the rows from the first to
        the last of its shards."""
        found: dict[str, tuple[int, tuple[int, int]]] = {}
        for number, examples in zip(update.shards, update.examples, strict=False):
            shard = self._shards[number]
            if not examples:
                continue
            first, stop = self._rows(shard)
            count, rows = found.get(shard.tensor, (examples, (first, stop)))
            if count != examples:
                raise RefusedError(
                    "length", f"factors of {shard.tensor!r} have different numbers of examples"
                )
            found[shard.tensor] = examples, (min(first, rows[0]), max(stop, rows[1]))
        return found


def _unfit(kind: str, rule: Rule) -> str:
    if isinstance(rule, AddUpdate):
        return f"the rule here adds up deltas, and takes no {kind}: it has no learning rate"
    if rule.keeps == ("squares",):
        return (
            "Adagrad divides by the root of the sum of squared gradients, and the squares of accumulated "
            "deltas are no such: push gradients"
        )
    return f"the rule {rule.name} here takes gradients, and a delta is none"

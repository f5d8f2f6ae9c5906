"""Check an update against the settings of a server's shards, and read its numbers.

Knows: update rules and the kinds they accept, shards, factors. Does not know: sessions, update numbers,
queues.

    kind        rule                       reason for rejecting the others
    delta       AddUpdate                  Adagrad needs squares of gradients, not of deltas
    gradient    Sgd, Momentum, Adagrad     AddUpdate has no learning rate
    factors     the same                   a product of factors is a gradient

Factors of a matrix are errors (examples, rows) and activations (examples, columns). For a tensor that is not
a matrix, such as the filters of a locally connected layer, its `Product` defines the factors. Its activations
are those that all rows of the update need together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Generic, Protocol, TypeVar

from cotswold.optim.server_rules import AddUpdate, Rule
from cotswold.shards.core.shard_server import Arithmetic, Values
from cotswold.wire import Shard, Update
from cotswold.wire.ranges import is_valid

KINDS = ("gradient", "delta", "factors")
Held = TypeVar("Held", covariant=True)


@dataclass(frozen=True, eq=False)
class ReceivedFactors(Generic[Held]):
    """A block of a gradient, pushed as factors: (row, column) = errorsᵀ · activations, row major."""

    errors: Held
    """Errors (example, row)."""
    activations: Held
    """Activations (example, column); may be shared with other shards of the tensor."""
    examples: int


@dataclass(frozen=True, eq=False)
class ShardUpdates(Generic[Values]):
    """One pass over a shard: one or more pushes, in order."""

    weights: Values
    state_vectors: Sequence[Values]
    """State vectors of the rule, in its order."""
    pushes: Sequence[tuple[float, Values | ReceivedFactors[Values]]]
    """(η or s, pushed values) of each push."""
    columns: int
    """Numbers per row."""
    unit_norm: bool = False
    """True if each row is scaled to norm 1 afterwards."""


class UpdateArithmetic(Protocol[Values]):
    """Arithmetic on a shard's updates, in addition to `Arithmetic`."""

    def apply(self, rule: Rule, passes: Sequence[ShardUpdates[Values]]) -> None:
        """Apply the passes of several shards in place."""
        ...

    def first_not_finite(self, pushed: Sequence[Values | ReceivedFactors[Values]]) -> int | None:
        """Return the first position whose numbers, or their sum of squares in their own type, are not finite;
        None if all are.

        For factors, the test uses the product of both sums of squares, which bounds every number of their
        gradient.
        """
        ...

    def product(self, factors: ReceivedFactors[Values]) -> Values:
        """Return the block of a gradient that factors represent, as a new array."""
        ...


class Product(Protocol[Values]):
    """Operations of a tensor that is not a matrix: its gradient from factors, and the scaling of its filters
    to norm 1."""

    @property
    def start(self) -> int:
        """Position of the tensor's first number in the vector."""
        ...

    def errors(self, first: int, stop: int) -> int:
        """Return the number of errors per example for these rows."""
        ...

    def activations(self, first: int, stop: int) -> int:
        """Return the number of activations per example that these rows need."""
        ...

    def gradient(
        self, errors: Values, activations: Values, rows: tuple[int, int], seen_by: tuple[int, int]
    ) -> Values:
        """Return the gradient of some rows from their errors and the activations that the rows ``seen_by``
        need."""
        ...

    def scale_to_norm_1(self, weights: Values) -> None:
        """Scale each filter of some rows to norm 1, in place; zero or non-finite filters stay unchanged."""
        ...


class UpdateRejectedError(ValueError):
    """The mistake in an update: a word for its kind, then a sentence."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind = kind


class Admission(Generic[Values]):
    """Admission of updates to a server's shards."""

    def __init__(
        self,
        shards: Sequence[Shard],
        columns: Mapping[str, int],
        rule: Rule,
        arithmetic: Arithmetic[Values],
        updates: UpdateArithmetic[Values],
        products: Mapping[str, Product[Values]] | None = None,
    ) -> None:
        """``products``: one for each tensor that is not a matrix."""
        self._shards = {shard.number: shard for shard in shards}
        self._columns, self._rule = columns, rule
        self._arithmetic, self._updates, self._products = arithmetic, updates, dict(products or {})

    def check(self, update: Update, rates: Mapping[int, float]) -> None:
        """Raise UpdateRejectedError if the update does not fit this server; its numbers are not read."""
        if update.kind not in KINDS:
            raise UpdateRejectedError(
                "kind", f"unknown kind {update.kind!r} of update; use one of {', '.join(KINDS)}"
            )
        if (update.kind == "delta") is not isinstance(self._rule, AddUpdate):
            raise UpdateRejectedError("kind", _rejection_reason(update.kind, self._rule))
        if update.kind != "delta" and update.rate not in rates:
            raise UpdateRejectedError("rate", f"unknown version {update.rate} of the learning rate")
        for what, number in (("scale", update.scale), ("decay", update.decay)):
            if not isfinite(number):
                raise UpdateRejectedError("finite", f"its {what} must be finite, got {number}")
        if not is_valid(update.samples):
            raise UpdateRejectedError("samples", "its ranges of samples must be ascending and disjoint")
        strange = sorted(set(update.shards) - self._shards.keys())
        if strange:
            raise UpdateRejectedError("shard", f"this server does not have shards {strange}")
        if len(set(update.shards)) != len(update.shards):
            raise UpdateRejectedError("shard", "it names a shard twice")
        if len(update.versions) != len(update.shards):
            raise UpdateRejectedError(
                "length", f"{len(update.versions)} versions for {len(update.shards)} shards"
            )
        wanted = len(update.shards) if update.kind == "factors" else 0
        if len(update.examples) != wanted or min(update.examples, default=0) < 0:
            raise UpdateRejectedError(
                "length", f"examples {list(update.examples)} for {wanted} shards with factors"
            )
        buffers = len(update.shards) + len(self._tensors(update))
        if len(update.buffers) != buffers:
            raise UpdateRejectedError("length", f"expected {buffers} buffers, got {len(update.buffers)}")

    def size(self, update: Update) -> dict[int, int]:
        """Return how many numbers are kept for each shard while the update is queued."""
        examples = update.examples or (0,) * len(update.shards)
        return {
            number: self._size(number, count, update.decay)
            for number, count in zip(update.shards, examples, strict=True)
        }

    def _size(self, number: int, examples: int, decay: float) -> int:
        shard = self._shards[number]
        size, columns = shard.stop - shard.start, self._columns[shard.tensor]
        return examples * (size // columns + columns) if self._keeps_factors(shard, examples, decay) else size

    def _keeps_factors(self, shard: Shard, examples: int, decay: float) -> bool:
        """True if factors are kept as factors until they are applied."""
        return bool(examples) and not decay and shard.tensor not in self._products

    def read(self, update: Update, weights: Mapping[int, Values]) -> list[Values | ReceivedFactors[Values]]:
        """Return the gradient, delta or factors of each shard, read-only. Factors of tensors that are not
        matrices, and factors with weight decay, are multiplied.

        ``weights`` are each shard's weights, for the decay of gradients from factors. Raise
        UpdateRejectedError for a buffer of the wrong length and for numbers that are not finite.
        """
        examples = update.examples or (0,) * len(update.shards)
        factored = self._tensors(update)
        try:
            activations = {
                tensor: (self._arithmetic.borrow(buffer, count * self._activation_count(tensor, rows)), rows)
                for (tensor, (count, rows)), buffer in zip(
                    factored.items(), update.buffers[len(update.shards) :], strict=True
                )
            }
            found: list[Values | ReceivedFactors[Values]] = []
            for number, count, buffer in zip(update.shards, examples, update.buffers, strict=False):
                shard = self._shards[number]
                if count:
                    seen = activations[shard.tensor]
                    found.append(self._factored(update, shard, count, buffer, *seen, weights[number]))
                else:
                    found.append(self._arithmetic.borrow(buffer, shard.stop - shard.start))
        except ValueError as error:
            raise UpdateRejectedError("length", str(error)) from error
        place = self._updates.first_not_finite(found)  # nor numbers whose squares overflow in a rule
        if place is not None:
            number = update.shards[place]
            raise UpdateRejectedError(
                "finite", f"shard {number} has numbers that are not finite or whose squares are not"
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
    ) -> Values | ReceivedFactors[Values]:
        product, (first, stop) = self._products.get(shard.tensor), self._rows(shard)
        if product is not None:
            errors = self._arithmetic.borrow(buffer, examples * product.errors(first, stop))
            gradient = product.gradient(errors, activations, (first, stop), seen_by)
        else:
            factors = ReceivedFactors(
                self._arithmetic.borrow(buffer, examples * (stop - first)), activations, examples
            )
            if not update.decay:
                return factors
            gradient = self._updates.product(factors)
        if update.decay:
            gradient = self._arithmetic.combine([(1.0, gradient), (update.decay, weights)], gradient)
        return gradient

    def _activation_count(self, tensor: str, rows: tuple[int, int]) -> int:
        """Return the number of activations per example."""
        product = self._products.get(tensor)
        return self._columns[tensor] if product is None else product.activations(*rows)

    def _rows(self, shard: Shard) -> tuple[int, int]:
        """Return the first and past-the-last row of a shard in its tensor."""
        product, columns = self._products.get(shard.tensor), self._columns[shard.tensor]
        start = 0 if product is None else product.start
        return (shard.start - start) // columns, (shard.stop - start) // columns

    def _tensors(self, update: Update) -> dict[str, tuple[int, tuple[int, int]]]:
        """Return the tensors pushed as factors: the number of examples, and the rows from the first to the
        last of its shards."""
        found: dict[str, tuple[int, tuple[int, int]]] = {}
        for number, examples in zip(update.shards, update.examples, strict=False):
            shard = self._shards[number]
            if not examples:
                continue
            first, stop = self._rows(shard)
            count, rows = found.get(shard.tensor, (examples, (first, stop)))
            if count != examples:
                raise UpdateRejectedError(
                    "length", f"factors of {shard.tensor!r} have different numbers of examples"
                )
            found[shard.tensor] = examples, (min(first, rows[0]), max(stop, rows[1]))
        return found


def _rejection_reason(kind: str, rule: Rule) -> str:
    if isinstance(rule, AddUpdate):
        return f"the rule deltas accepts no {kind}, because it has no learning rate; push deltas"
    if rule.state_names == ("squares",):
        return (
            "Adagrad divides by the root of the sum of squared gradients, and the squares of accumulated "
            "deltas are not squares of gradients; push gradients"
        )
    return f"the rule {rule.name} accepts gradients, not deltas"

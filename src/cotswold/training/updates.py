"""What a replica pushes: gradients, deltas or factors of a module's parameters, computed from a batch.

Knows: a module, which shards hold its parameters, what each way of pushing costs. Does not know: servers,
messages, rates.

- *gradient*: as autograd has it.
- *delta*: what the replica's own plain steps have added up to since the last push.
- *factors*: activations and error terms of a layer, multiplied by whoever holds its weights.

Of a layer that can be pushed as factors (`capture.layers_of`) the way of fewer numbers is chosen, when its
first batch tells how many examples it has. In that batch its gradient is computed as well, and where the
factors do not give it, because the weights are used twice, recomputed (checkpointing) or part of the loss,
the layer stays with gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from cotswold.cluster.layout import shards_of
from cotswold.cluster.work import Slot
from cotswold.errors import UserError
from cotswold.server.messages import Shard
from cotswold.training.capture import Captured, Layer, capturing, layers_of
from cotswold.training.factors import Factors, agree
from cotswold.training.flat import FlatModule

Way = Literal["gradient", "factors"]
"""How the parameters of a layer are pushed after a batch; deltas are of all parameters."""


@dataclass(frozen=True)
class Cost:
    """Numbers of a layer's push to all servers that hold it, one batch."""

    gradient: int
    factors: int | None
    """None where they do not give the gradient."""
    way: Way
    """What is done."""

    def bytes(self, item_bytes: int) -> int:
        """Bytes of what is done."""
        numbers = self.factors if self.way == "factors" else self.gradient
        assert numbers is not None, "factors are pushed where there are some"
        return item_bytes * numbers


@dataclass(frozen=True)
class Update:
    """What one batch gives to push."""

    loss: float
    gradient: Tensor
    """``(size,)``, as the flat vector; zeros where a layer has factors."""
    factors: Mapping[str, Factors]
    """Those of layers that are pushed so, by the layers' names."""


class ModuleUpdates:
    """The updates of one module, whose parameters lie in one vector, as ``flat`` has them."""

    def __init__(
        self,
        module: nn.Module,
        servers: Sequence[str] = ("server",),
        shard_bytes: int = 1 << 20,
        ways: Mapping[str, Way] | None = None,
    ) -> None:
        """``ways``: layers by name whose way is not to be chosen by numbers.

        Raises UserError for a name that is no such layer, and for parameters that cannot lie in one vector.
        """
        self.flat = FlatModule(module)
        vector = self.flat.vector
        self.layout = [Slot.of_shape(*each) for each in zip(self.flat.names, self.flat.shapes, strict=True)]
        self.shards = shards_of(self.layout, vector.element_size(), shard_bytes, servers)
        self.costs: dict[str, Cost] = {}
        """By layer, after the first batch in which the loss depended on it."""
        self._layers = layers_of(module)
        self._wished = dict(ways or {})
        for name in self._wished:
            if name not in self._layers:
                raise UserError(
                    f"{name!r} cannot be pushed as factors; layers that can: "
                    f"{', '.join(self._layers) or 'none'}"
                )

    def of_batch(self, loss: Callable[[], Tensor]) -> Update:
        """What a batch gives; ``loss`` computes it by the module, forward only.

        Raises UserError where a layer of which factors are pushed is applied a second time, or a wish for
        factors cannot be fulfilled.
        """
        chosen = {name: self._layers[name] for name, cost in self.costs.items() if cost.way == "factors"}
        new = {name: each for name, each in self._layers.items() if name not in self.costs}
        gradient = torch.zeros_like(self.flat.vector)
        self.flat.collect(gradient)
        try:
            with capturing(new, skip=False) as first, capturing(chosen, skip=True) as found:
                value = loss()
                value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        finally:
            self.flat.collect(None)
        factors = {name: one for name, each in found.items() if (one := _once(name, each)) is not None}
        for name, captured in first.items():
            own = [self.flat.named(gradient)[each] for each in self._own(name)]
            if captured.errors is None and not any(each.any() for each in own):
                continue  # the loss did not depend on it
            one, self.costs[name] = captured.factors, self._decided(name, captured, own)
            if one is not None and self.costs[name].way == "factors":
                factors[name] = one
                for each in own:
                    each.zero_()
        return Update(float(value.detach()), gradient, factors)

    def dense(self, update: Update) -> Tensor:
        """The whole gradient, as whoever receives an update makes it of gradients and factors."""
        found = update.gradient.clone()
        parts = self.flat.named(found)
        for name, factors in update.factors.items():
            for each, value in zip(self._own(name), factors.gradients(), strict=False):
                parts[each].copy_(value)
        return found

    def of_shard(self, update: Update, shard: Shard) -> Tensor | Factors:
        """What one shard is pushed: its part of the gradient ``(stop - start,)``, or the factors of its rows.

        Biases ride along with the factors of their layer's weights; a shard that holds biases alone gets
        their gradient, which is fewer numbers than the errors that it sums.
        """
        layer, _, kind = shard.tensor.rpartition(".")
        factors = update.factors.get(layer)
        if factors is None:
            return update.gradient[shard.start : shard.stop]
        part = factors.of_rows(self.rows_of(shard))
        return part if kind == "weight" else part.bias_gradient().reshape(-1)

    def rows_of(self, shard: Shard) -> tuple[int, int]:
        """The rows of its tensor that a shard has."""
        start = 0
        for slot in self.layout:
            if slot.name == shard.tensor:
                return (shard.start - start) // slot.columns, (shard.stop - start) // slot.columns
            start += slot.rows * slot.columns
        raise AssertionError("a shard of this layout")

    def _decided(self, name: str, captured: Captured, gradients: Sequence[Tensor]) -> Cost:
        factors, wish = captured.factors, self._wished.get(name)
        numbers = sum(each.numel() for each in gradients)
        if factors is None or captured.calls > 1 or not agree(factors, gradients):
            if wish == "factors":
                raise UserError(
                    f"{name} cannot be pushed as factors: it is applied more than once, or computed anew by "
                    "checkpointing, or its weights are used elsewhere; leave it to gradients"
                )
            return Cost(numbers, None, "gradient")
        found = self._numbers(name, factors)
        way: Way = "factors" if found < numbers else "gradient"
        return Cost(numbers, found, wish or way)

    def _numbers(self, name: str, factors: Factors) -> int:
        """Numbers of these factors to all servers that hold rows of the layer's weights: what several shards
        of a server need is sent once."""
        rows: dict[str, list[int]] = {}
        for shard in self.shards:
            if shard.tensor == self._own(name)[0]:
                rows.setdefault(shard.server, []).extend(self.rows_of(shard))
        return sum(factors.of_rows((min(each), max(each))).numbers for each in rows.values())

    def _own(self, name: str) -> list[str]:
        """The names of a layer's weights, and of its biases where it has some."""
        prefix = f"{name}." if name else ""
        layer: Layer = self._layers[name]
        return [f"{prefix}weight"] + ([] if layer.bias is None else [f"{prefix}bias"])


class LocalSteps:
    """Plain steps on the replica's own copy between two pushes, and what they add up to."""

    def __init__(self, flat: FlatModule) -> None:
        self._flat = flat
        self._delta = torch.zeros_like(flat.vector)
        self.steps = 0
        """Since the last push."""

    def step(self, gradient: Tensor, rate: float) -> None:
        """w ← w - rate · gradient ``(size,)``."""
        self._flat.vector.sub_(gradient, alpha=rate)
        self._delta.sub_(gradient, alpha=rate)
        self.steps += 1

    def take(self) -> Tensor:
        """The delta ``(size,)`` of the steps since it was last taken; it is the caller's."""
        taken, self._delta = self._delta, torch.zeros_like(self._delta)
        self.steps = 0
        return taken


def _once(name: str, captured: Captured) -> Factors | None:
    if captured.calls > 1:
        raise UserError(
            f"{name} was applied {captured.calls} times in one batch, but once in the first; its factors are "
            f'not its gradient: give ways={{"{name}": "gradient"}}'
        )
    return captured.factors

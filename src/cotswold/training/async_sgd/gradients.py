"""The push format of a replica's gradients: full gradients or factors.

Knows: a module, the shards of its parameters, the cost of each push format. Does not know: servers, messages,
rates.

- *gradient*: the gradient from autograd.
- *factors*: activations and error terms of a layer, which the server of its weights multiplies.

For a layer with factors (`capture.layers_of`), its first batch shows the number of examples, and the format
with fewer numbers is chosen. In that batch the gradient is computed too. If the factors do not match it,
because the weights are used twice, recomputed (checkpointing) or part of the loss, the layer keeps gradients.
A layer whose inputs are unprocessed samples also keeps gradients, because its factors would send samples to
servers; this happens only if the user requests factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import torch
from torch import Tensor, nn

from cotswold.errors import UserError
from cotswold.ops.local import encode
from cotswold.shards.runtime.work import TensorSlot
from cotswold.training.async_sgd.capture import Captured, capture_factors, layers_of
from cotswold.training.async_sgd.factors import Factors, LinearFactors, LocalFactors, agree, concatenate
from cotswold.training.flat_parameters import FlatParameters
from cotswold.wire import Shard

PushFormat = Literal["gradient", "factors"]
"""The push format of a layer's weights."""


@dataclass(frozen=True)
class Cost:
    """The number of values that a push of a layer's weights sends, to all servers with shards of it."""

    gradient: int
    factors: int | None
    """None if factors do not give the gradient."""
    push_format: PushFormat
    """The chosen format."""


class ModuleUpdates:
    """The gradients of one module, whose parameters are one vector in ``flat``."""

    def __init__(self, flat: FlatParameters, push_formats: Mapping[str, PushFormat] | None = None) -> None:
        """``push_formats`` sets the push format of layers by name, instead of the choice by cost.

        Raises UserError for the name of a layer without factors.
        """
        self.flat = flat
        self.costs: dict[str, Cost] = {}
        """The cost by layer, after the first batch in which the loss depended on it."""
        self._layers = layers_of(flat.module)
        self._wished = dict(push_formats or {})
        for name in self._wished:
            if name not in self._layers:
                raise UserError(
                    f"{name!r} cannot be pushed as factors; layers with factors: "
                    f"{', '.join(self._layers) or 'none'}"
                )
        self._shards: Sequence[Shard] = ()
        self._push_samples = 1
        self._factors: dict[str, list[LinearFactors | LocalFactors]] = {}
        """The factors by layer, of the batches since the last `take`."""
        self._newest: dict[str, LinearFactors | LocalFactors] = {}
        """The factors of the latest batch."""

    @property
    def layout(self) -> list[TensorSlot]:
        """The tensors in the vector."""
        shapes = zip(self.flat.names, self.flat.shapes, strict=True)
        return [self._slot(name, shape) for name, shape in shapes]

    def lay(self, shards: Sequence[Shard], samples: int) -> None:
        """Set the shards and the samples of a push; each layer's format is chosen again."""
        self._shards, self._push_samples = shards, samples
        self.costs = {}

    def compute_loss(self, loss: Callable[[], Tensor], samples: int, gradient: Tensor) -> float:
        """Return the loss of a batch; ``loss`` runs the module's forward pass.

        Pushed gradients are added to ``gradient`` ``(size,)``, factors to the result of `take`. Before `lay`
        everything is a gradient. Raises UserError if a layer with factors is applied twice, or cannot have
        the factors that the user requested.
        """
        chosen = {
            name: self._layers[name] for name, cost in self.costs.items() if cost.push_format == "factors"
        }
        wished = {name for name, way in self._wished.items() if way == "gradient"}
        decided = self.costs.keys() | wished
        new = {name: each for name, each in self._layers.items() if self._shards and name not in decided}
        target = torch.zeros_like(gradient) if new else gradient
        self._newest = {}
        self.flat.set_grad_views(target)
        try:
            with (
                capture_factors(new, skip_weights=False) as first,
                capture_factors(chosen, skip_weights=True) as found,
            ):
                value = loss()
                value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        finally:
            self.flat.set_grad_views(None)
        for name, each in found.items():
            self._keep(name, _factors_of_single_use(name, each))
        for name, each in first.items():
            own = self.flat.by_name(target)[self._weights(name)]
            if each.errors is not None or own.any():  # the loss depends on it
                self.costs[name] = self._choose_format(name, each, own, samples)
                if self.costs[name].push_format == "factors":
                    self._keep(name, each.factors)
                    own.zero_()
        if target is not gradient:
            gradient.add_(target)
        return float(value.detach())

    def clip(self, gradient: Tensor, norm: float) -> None:
        """Scale the gradient of the latest batch to ``norm`` if it is longer.

        It consists of the batch's factors and ``gradient`` ``(size,)``, which must hold nothing else.
        """
        square = float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2
        found = (square + sum(each.square for each in self._newest.values())) ** 0.5
        if not norm < found < inf:  # the server rejects non-finite values
            return
        gradient.mul_(norm / found)
        for name, each in self._newest.items():
            self._factors[name][-1] = replace(each, errors=each.errors * (norm / found))

    def take(self) -> Mapping[str, Factors]:
        """Return the factors since the last call, by the name of the weights."""
        taken, self._factors = self._factors, {}
        return {self._weights(name): concatenate(each) for name, each in taken.items()}

    @property
    def factored(self) -> list[str]:
        """The names of the weights that are pushed as factors."""
        return [self._weights(name) for name, cost in self.costs.items() if cost.push_format == "factors"]

    def _keep(self, name: str, factors: LinearFactors | LocalFactors | None) -> None:
        if factors is not None:
            self._factors.setdefault(name, []).append(factors)
            self._newest[name] = factors

    def _choose_format(self, name: str, captured: Captured, gradient: Tensor, samples: int) -> Cost:
        factors, wish = captured.factors, self._wished.get(name)
        if factors is None or captured.calls > 1 or not agree(factors, gradient):
            if wish == "factors":
                raise UserError(
                    f"{name} cannot be pushed as factors: it is applied more than once, or recomputed by "
                    "checkpointing, or its weights are used elsewhere; use gradients for it"
                )
            return Cost(gradient.numel(), None, "gradient")
        found = -(-self._numbers(name, factors) * self._push_samples // samples)
        way: PushFormat = (
            "factors" if found < gradient.numel() and self._is_computed(captured) else "gradient"
        )
        return Cost(gradient.numel(), found, wish or way)

    def _is_computed(self, captured: Captured) -> bool:
        """Return True if a layer's inputs are more than scaled samples; vectors, as in normalisations,
        only scale.
        """
        return captured.is_computed([each for each in self.flat.module.parameters() if each.dim() > 1])

    def _numbers(self, name: str, factors: Factors) -> int:
        """Return the number of values in these factors for all servers with rows of the layer's weights.

        Values for several shards on one server are sent once.
        """
        weights, servers = self._weights(name), dict[str, list[int]]()
        own = [shard for shard in self._shards if shard.tensor == weights]
        (slot,) = (slot for slot in self.layout if slot.name == weights)
        for shard in own:
            edges = (shard.start - own[0].start, shard.stop - own[0].start)
            servers.setdefault(shard.server, []).extend(edge // slot.columns for edge in edges)
        return sum(factors.numbers(min(rows), max(rows)) for rows in servers.values())

    def _weights(self, name: str) -> str:
        return f"{name}.weight" if name else "weight"

    def _slot(self, name: str, shape: Sequence[int]) -> TensorSlot:
        layer, _, kind = name.rpartition(".")
        found = self._layers.get(layer) if kind == "weight" else None
        own = () if found is None or isinstance(found, nn.Linear) else encode(found.geometry)
        slot = TensorSlot.of_shape(name, shape)
        return TensorSlot(slot.name, slot.rows, slot.columns, own)


def _factors_of_single_use(name: str, captured: Captured) -> LinearFactors | LocalFactors | None:
    if captured.calls > 1:
        raise UserError(
            f"{name} was applied {captured.calls} times in one batch, but once in the first; its factors are "
            f'not its gradient: give push_formats={{"{name}": "gradient"}}'
        )
    return captured.factors

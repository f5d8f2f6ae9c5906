"""Factors of layers, captured in one ordinary backward pass.

Knows: hooks of modules and tensors. Does not know: how factors are used.

While a layer is captured, its weights may have gradients disabled, so that autograd skips the product that a
server will compute. Biases keep their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from cotswold.nn import Linear, LocallyConnected2d
from cotswold.training.async_sgd.factors import LinearFactors, LocalFactors

Layer = nn.Linear | LocallyConnected2d


@dataclass
class Captured:
    """The inputs and output errors of one layer in a forward and backward pass."""

    layer: Layer
    calls: int = 0
    """The number of applications, including those in a recomputation."""
    inputs: Tensor | None = None
    """A copy of the first inputs, because the originals may be changed in place."""
    errors: Tensor | None = None
    _below: Node | None = None
    """The autograd node of the inputs; None if no trainable parameter produced them."""

    def is_computed(self, weights: Collection[nn.Parameter]) -> bool:
        """Return True if the inputs were computed with one of these ``weights``.

        Otherwise the inputs are samples: unchanged, reshaped or scaled.
        """
        known = {id(each) for each in weights}
        due, seen = [self._below], set[Node]()
        while due:
            node = due.pop()
            if node is None or node in seen:
                continue
            if id(getattr(node, "variable", None)) in known:
                return True
            seen.add(node)
            due += [below for below, _ in node.next_functions]
        return False

    def record_inputs(self, inputs: Tensor) -> None:
        """Record the inputs of the first application."""
        self.inputs, self._below = inputs.detach().clone(), inputs.grad_fn

    @property
    def factors(self) -> LinearFactors | LocalFactors | None:
        """The factors of the layer; None if the loss does not depend on it."""
        if self.inputs is None or self.errors is None:
            return None
        errors = self.errors.to(self.inputs.dtype)
        if isinstance(self.layer, nn.Linear):
            return LinearFactors.of(errors, self.inputs)
        return LocalFactors.of(errors, self.inputs, self.layer.geometry)


def layers_of(module: nn.Module) -> Mapping[str, Layer]:
    """Return the layers of a module that have factors, by name.

    Their parameters must be trainable and unshared. A class derived from one of these layers may compute
    something else, so it is excluded.
    """
    owners: dict[nn.Parameter, int] = {}
    for each in module.modules():
        for parameter in each.parameters(recurse=False):
            owners[parameter] = owners.get(parameter, 0) + 1
    found: dict[str, Layer] = {}
    for name, each in module.named_modules():
        if type(each) in (nn.Linear, Linear, LocallyConnected2d):
            own = list(each.parameters())
            if all(parameter.requires_grad and owners[parameter] == 1 for parameter in own):
                found[name] = each
    return found


class _AutogradRoot(torch.autograd.Function):
    """A copy of a tensor that has a gradient even if nothing below requires one."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, root: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _with_autograd_root(output: Tensor) -> Tensor:
    root = torch.zeros((), device=output.device, requires_grad=True)
    found: Tensor = _AutogradRoot.apply(output, root)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


@contextmanager
def capture_factors(layers: Mapping[str, Layer], *, skip_weights: bool) -> Iterator[Mapping[str, Captured]]:
    """Capture the inputs and output errors of layers while the context is open.

    With ``skip_weights`` their weights get no gradient, and the product for it is not computed.
    """
    found = {name: Captured(layer) for name, layer in layers.items()}
    learning = [layer.weight for layer in layers.values() if skip_weights and layer.weight.requires_grad]
    with ExitStack() as hooks:
        for one in found.values():
            hooks.callback(one.layer.register_forward_hook(_hook(one), with_kwargs=True).remove)
        for each in learning:
            each.requires_grad_(False)
        try:
            yield found
        finally:
            for each in learning:
                each.requires_grad_(True)


def _hook(one: Captured) -> Callable[..., Tensor | None]:
    def applied(
        layer: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Tensor
    ) -> Tensor | None:
        one.calls += 1
        if not torch.is_grad_enabled() or one.calls > 1:
            return None
        changed = None
        if not output.requires_grad or output._is_view():  # a view that changes in place loses its hooks
            changed = output = _with_autograd_root(output)
        (given,) = (*inputs, *named.values())
        one.record_inputs(given)

        def came(gradient: Tensor) -> None:
            one.errors = gradient.detach().clone()

        output.register_hook(came)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return changed

    return applied

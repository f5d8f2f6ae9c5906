"""Factors of layers, captured in one ordinary backward pass.

Knows: hooks of modules and tensors. Does not know: what becomes of factors.

While a layer is captured its weights may ask for no gradient, so that autograd does not compute the product
that somebody else will compute. Biases have theirs as always.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from cotswold.nn import LocallyConnected2d
from cotswold.training.async_sgd.factors import LinearFactors, LocalFactors

Layer = nn.Linear | LocallyConnected2d


@dataclass
class Captured:
    """What one layer was given and what came back, in one forward and backward pass."""

    layer: Layer
    calls: int = 0
    """How often it was applied, in a recomputation too."""
    inputs: Tensor | None = None
    """A copy of what it was given first, for that may be changed in place."""
    errors: Tensor | None = None
    _below: Node | None = None
    """What computed what it was given; None for what nothing that learns has computed."""

    def is_computed(self, weights: Collection[nn.Parameter]) -> bool:
        """Whether what it was given was computed with one of these ``weights``.

        What was not are samples: as they are, reshaped, scaled.
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

    def given(self, inputs: Tensor) -> None:
        """It is applied to these."""
        self.inputs, self._below = inputs.detach().clone(), inputs.grad_fn

    @property
    def factors(self) -> LinearFactors | LocalFactors | None:
        """Its factors; None where the loss does not depend on it."""
        if self.inputs is None or self.errors is None:
            return None
        errors = self.errors.to(self.inputs.dtype)
        if isinstance(self.layer, nn.Linear):
            return LinearFactors.of(errors, self.inputs)
        return LocalFactors.of(errors, self.inputs, self.layer.geometry)


def layers_of(module: nn.Module) -> Mapping[str, Layer]:
    """The layers of a module that have factors, by name: those whose parameters are theirs alone and learn.

    A class derived from one of these may compute something else, and is left out.
    """
    owners: dict[nn.Parameter, int] = {}
    for each in module.modules():
        for parameter in each.parameters(recurse=False):
            owners[parameter] = owners.get(parameter, 0) + 1
    found: dict[str, Layer] = {}
    for name, each in module.named_modules():
        if type(each) is nn.Linear or type(each) is LocallyConnected2d:
            own = list(each.parameters())
            if all(parameter.requires_grad and owners[parameter] == 1 for parameter in own):
                found[name] = each
    return found


class _Rooted(torch.autograd.Function):
    """A copy of a tensor that has a gradient, also where nothing below it asks for one."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, root: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _rooted(output: Tensor) -> Tensor:
    root = torch.zeros((), device=output.device, requires_grad=True)
    found: Tensor = _Rooted.apply(output, root)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


@contextmanager
def capturing(layers: Mapping[str, Layer], *, skip: bool) -> Iterator[Mapping[str, Captured]]:
    """What these layers are given, and the errors that come back, while the block runs.

    With ``skip`` their weights get no gradient, and the product for it is not computed.
    """
    found = {name: Captured(layer) for name, layer in layers.items()}
    learning = [layer.weight for layer in layers.values() if skip and layer.weight.requires_grad]
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
        if not output.requires_grad or output._is_view():  # a view that is changed in place loses its hooks
            changed = output = _rooted(output)
        (given,) = (*inputs, *named.values())
        one.given(given)

        def came(gradient: Tensor) -> None:
            one.errors = gradient.detach().clone()

        output.register_hook(came)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return changed

    return applied

"""The recipe's settings of single layers: push formats, and filters of norm 1.

Knows: layers by their numbers in a recipe, modules by their names. Does not know: what is pushed when.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from cotswold import ops
from cotswold.nn import LocallyConnected2d
from cotswold.recipe.schema import DownpourTraining
from cotswold.training.async_sgd.capture import layers_of
from cotswold.training.async_sgd.gradients import PushFormat
from cotswold.training.models import LayerNetwork


def push_formats(network: LayerNetwork, training: DownpourTraining) -> Mapping[str, PushFormat]:
    """Return the push formats that `push_format` and its exceptions set, by module name; without layers
    chosen by cost.
    """
    numbers = [
        number
        for number, plan in enumerate(network.plans, 1)
        if plan.name in DownpourTraining.factored_layers
    ]
    found: dict[str, PushFormat] = {}
    for name, number in zip(layers_of(network), numbers, strict=True):
        way = training.sent(number)
        if way != "auto":
            found[name] = way
    return found


def unit_norm_weights(network: nn.Module) -> frozenset[str]:
    """Return the weights of filters, except for the outputs.

    Fully connected and convolutional layers have one row per neuron or map, local layers one filter per
    neuron and position.
    """
    kinds = nn.Linear | nn.Conv2d | LocallyConnected2d
    found = [f"{name}.weight" for name, each in network.named_modules() if isinstance(each, kinds)]
    return frozenset(found[:-1])


def scale_to_norm_1(network: nn.Module) -> None:
    """Scale these filters to norm 1, as servers do after each update (`ops.filters`)."""
    filters = unit_norm_weights(network)
    for name, each in network.named_modules():
        if f"{name}.weight" in filters:
            is_local = isinstance(each, LocallyConnected2d)
            scale = ops.scale_to_norm_1 if is_local else ops.scale_rows_to_norm_1
            scale(each.get_parameter("weight").detach())

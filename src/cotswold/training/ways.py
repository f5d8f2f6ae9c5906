"""What a recipe of strategy downpour says of single layers: how they are pushed, whose filters have norm 1.

Knows: layers by their numbers in a recipe, modules by their names. Does not know: what is pushed when.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from cotswold.ops.updates import Update, apply_pushes
from cotswold.recipe.schema import DownpourTraining
from cotswold.training.capture import layers_of
from cotswold.training.networks import LayerNetwork
from cotswold.training.updates import Way


def ways_of(network: LayerNetwork, training: DownpourTraining) -> Mapping[str, Way]:
    """How `send` and its exceptions have layers pushed, by the names of modules; without those whose way is
    chosen by numbers."""
    numbers = [
        number
        for number, plan in enumerate(network.plans, 1)
        if plan.name in DownpourTraining.factored_layers
    ]
    found: dict[str, Way] = {}
    for name, number in zip(layers_of(network), numbers, strict=True):
        way = training.sent(number)
        if way != "auto":
            found[name] = way
    return found


def rows_of_norm_1(network: nn.Module) -> frozenset[str]:
    """The weights whose rows are filters, but those of the outputs: a row for each neuron or map."""
    found = [
        f"{name}.weight" for name, each in network.named_modules() if isinstance(each, nn.Linear | nn.Conv2d)
    ]
    return frozenset(found[:-1])


def scale_to_norm_1(network: nn.Module) -> None:
    """Scale these filters so, as servers do after each update."""
    unit = rows_of_norm_1(network)
    for name, each in network.named_parameters():
        if name in unit:
            rows = each.detach().view(-1)
            update = Update("add", columns=rows.numel() // each.shape[0], unit_norm=True)
            apply_pushes(update, rows, None, [(0.0, torch.zeros_like(rows))])

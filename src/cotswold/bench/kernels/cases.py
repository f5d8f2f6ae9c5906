"""The measurements of `bench kernels`, in groups.

Knows: the shapes of each measurement. Does not know: the method of any, processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotswold.bench.case import Case
from cotswold.bench.effort import Effort
from cotswold.bench.kernels import extra, first_use, layers, narrow, perceptron, smoothing, stacks
from cotswold.bench.kernels.baselines import PRODUCTS
from cotswold.bench.kernels.shapes import (
    BUNYIP,
    SIZES,
    Perceptron,
    Shape,
    dense_layer,
    few_shapes,
    paper,
    paper_maps,
    paper_shapes,
    recipe_shapes,
    untied,
    untied_shapes,
)
from cotswold.bench.row import Row

GROUPS = (
    "paper",
    "recipe",
    "untied",
    "few",
    "dense",
    "curve",
    "smoothing",
    "bfloat16",
    "memory",
    "start",
)


def cases() -> list[Case[Any]]:
    """All measurements, group by group."""
    papers, recipes = paper_shapes(), recipe_shapes()
    return [
        *(_shape_case(shape, stacks.measured) for shape in (*papers, *recipes)),
        *(_shape_case(shape, layers.measured) for shape in (*untied_shapes(), *few_shapes())),
        *(_network_case(network) for network in BUNYIP),
        *(_size_case(size) for size in SIZES),
        *(_shape_case(shape, smoothing.measured, "smoothing") for shape in (paper_maps(), recipes[0])),
        _shape_case(papers[1], narrow.measured, "bfloat16"),
        *(_shape_case(shape, extra.measured, "memory", once=True) for shape in (*untied_shapes(), papers[1])),
        Case("start", "first calls of new processes", first_use.measured, PRODUCTS, is_measured_once=True),
    ]


def quick_cases() -> list[Case[Any]]:
    """One small measurement of each group, to try the command."""
    stack, layer = paper(3, 28, 32), untied(16, 16, 12, 3, 32)
    return [
        _shape_case(stack, stacks.measured),
        _shape_case(layer, layers.measured),
        _shape_case(Shape(layer.name, "few", layer.layer, 1), layers.measured),
        _network_case(Perceptron(40, 48, 320, 64)),
        *(_size_case(size) for size in SIZES[:3]),
        _shape_case(stack, smoothing.measured, "smoothing"),
        _shape_case(stack, narrow.measured, "bfloat16"),
        _shape_case(layer, extra.measured, "memory", once=True),
        Case("start", "first calls of new processes", first_use.measured, PRODUCTS, is_measured_once=True),
    ]


def explainable() -> list[Shape]:
    """Every shape whose products are measured, including fully connected layers."""
    networks = (
        Shape(
            f"{network.name}, {inputs} to {outputs}", "dense", dense_layer(inputs, outputs), network.samples
        )
        for network in BUNYIP
        for inputs, outputs in ((network.inputs, network.hidden), (network.hidden, network.outputs))
    )
    return [*paper_shapes(), *recipe_shapes(), *untied_shapes(), *few_shapes(), *networks]


def _shape_case(
    shape: Shape, measured: Callable[[Shape, Effort], list[Row]], group: str = "", once: bool = False
) -> Case[Shape]:
    name = f"{shape.name}, {shape.images} {'images' if shape.images > 1 else 'image'}"
    return Case(group or shape.group, name, measured, shape, once)


def _network_case(network: Perceptron) -> Case[Perceptron]:
    return Case("dense", f"{network.name}, {network.samples} samples", perceptron.measured, network)


def _size_case(size: int) -> Case[int]:
    return Case("curve", f"{size} x {size}", perceptron.curve, size)

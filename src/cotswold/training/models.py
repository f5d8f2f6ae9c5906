"""Models from recipes.

Knows: the modules of each recipe entry, their shapes, FLOPs and bytes. Does not know: training, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from cotswold.errors import GeometryError, RecipeError
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.nn import (
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    L2Pool2d,
    Linear,
    LocalContrastNorm2d,
    LocallyConnected2d,
    MaxPool2d,
    SparseAutoencoderStack,
    StackNetwork,
)
from cotswold.recipe import Recipe, schema
from cotswold.recipe.bounds import VALUES_MAX
from cotswold.recipe.schema.optimizers import OPTIMIZERS
from cotswold.training.jobs.memory_estimate import FLOAT_BYTES
from cotswold.training.precision import autocast, in_float32


def build_stacks(recipe: Recipe) -> StackNetwork:
    """Build the stacks of a recipe with their initial filters.

    The filters depend only on the seed, the stack and the block.

    Args:
        recipe: The recipe, with its input shape, stacks, objective, seed and device.

    Returns:
        The network on the recipe's device; images ``(channel, y, x, image)`` are its input.
    """
    stacks = []
    for index, geometry in enumerate(recipe.stack_geometries()):
        stacks.append(
            SparseAutoencoderStack(
                geometry,
                sparsity=recipe.sparsity(index),
                epsilon=recipe.stack_objective.epsilon,
                seed=recipe.training.seed,
                index=index,
            )
        )
    return StackNetwork(stacks).to(recipe.training.device)


@dataclass(frozen=True)
class LayerPlan:
    """One layer of a supervised network before it is built."""

    name: str
    output: tuple[int, ...]
    forward_flops: int
    parameters: int
    modules: int = 1
    """The number of consecutive modules that implement the layer."""


class LayerNetwork(nn.Module):
    """Layers on images, or on the output of trained stacks.

    Args:
        layers: The modules of the layers, in order.
        plans: One plan for each layer of the recipe, then the output layer.
        below: Trained stacks that feed the layers; None feeds images.
        finetune: True to train the stacks below too.
    """

    def __init__(
        self, layers: nn.Sequential, plans: list[LayerPlan], below: StackNetwork | None, finetune: bool
    ) -> None:
        super().__init__()
        self.layers = layers
        self.plans = plans
        self.below = below
        self.finetune = finetune
        self.precision = "32"
        """The precision of the layers: "32", "bf16-mixed" or "16-mixed"; the scores are float32."""
        if below is not None:
            below.requires_grad_(finetune)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the scores of a batch.

        Args:
            images: Images ``(image, channel, y, x)``, or vectors ``(sample, feature, 1, 1)``.

        Returns:
            Scores ``(image, class)``, or regression outputs ``(image, target)``.
        """
        if self.precision == "32":
            return self._scores(images)
        with autocast(self.precision, images.device):
            scores: Tensor = in_float32(self._scores(images))
        return scores

    def _scores(self, images: Tensor) -> Tensor:
        if self.below is not None:
            with torch.set_grad_enabled(self.finetune and torch.is_grad_enabled()):
                images = self.below(images)
        scores: Tensor = self.layers(images)
        return scores

    @property
    def update_flops(self) -> int:
        """FLOPs of an update for one image: the forward pass, and both gradients of every product."""
        stacks = [stack.geometry.forward_flops for stack in self.below.stacks] if self.below else []
        layers = [plan.forward_flops for plan in self.plans if plan.forward_flops]
        learnt = stacks + layers if self.finetune else layers
        # the input of the lowest trained product needs no gradient
        return sum(stacks) + sum(layers) + 2 * sum(learnt) - learnt[0]


def layer_names(network: nn.Module) -> Mapping[str, str]:
    """Return the recipe's names of modules: `layers.3` is `layer 2`, counted from 1, the output layer last.

    A module that is no recipe's network gives an empty mapping.
    """
    if not isinstance(network, LayerNetwork):
        return {}
    found: dict[str, str] = {}
    for number, plan in enumerate(network.plans, 1):
        for place in range(len(found), len(found) + plan.modules):
            found[f"layers.{place}"] = f"layer {number}"
    return found


def build_layers(recipe: Recipe, classes: int, below: StackNetwork | None) -> LayerNetwork:
    """Build the supervised network of a recipe; the initial weights depend only on the seed.

    Args:
        recipe: The recipe, with its layers, seed and device.
        classes: The number of outputs of the last layer.
        below: Trained stacks that feed the layers; None feeds images.

    Returns:
        The network on the recipe's device.

    Raises:
        GeometryError: If a layer does not fit the output of the layer below.
        RecipeError: If the network is a Python program's module.
    """
    shape = below.stacks[-1].geometry.output if below is not None else recipe.input
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        modules, plans = _layers(recipe, classes, shape)
    return LayerNetwork(nn.Sequential(*modules), plans, below, recipe.network.finetune).to(
        recipe.training.device
    )


def network_tensors(network: torch.nn.Module) -> dict[str, Tensor]:
    """Return the live tensors of a network under their names in checkpoints."""
    return {f"network.{name}": tensor for name, tensor in network.state_dict().items()}


def planned_layers(recipe: Recipe, classes: int, below: MapShape | None = None) -> list[LayerPlan]:
    """Return the layers of a supervised network on maps of shape ``below`` (the images), unallocated."""
    with torch.device("meta"):
        return _layers(recipe, classes, below or recipe.input)[1]


def layers_bytes(recipe: Recipe, classes: int, batch: int, below: Sequence[StackGeometry] = ()) -> int:
    """Return the bytes for training a supervised network on stacks of these geometries, or on images.

    Counts weights, gradients and the optimiser's tensors, and every map with its gradient; frozen stacks have
    no gradients.
    """
    shape = below[-1].output if below else recipe.input
    plans = planned_layers(recipe, classes, shape)
    copies = 3  # weights, gradients, momenta
    if isinstance(recipe.training, schema.SupervisedTraining):
        copies = 2 + OPTIMIZERS[recipe.training.optimizer].moments
    weights = copies * sum(plan.parameters for plan in plans)
    maps = 2 * (shape.size + sum(prod(plan.output) for plan in plans))
    filters = sum(geometry.filters.parameters for geometry in below)
    responses = sum(geometry.responses.size + 2 * geometry.output.size for geometry in below)
    tuned = recipe.network.finetune
    return FLOAT_BYTES * (
        weights + (copies if tuned else 1) * filters + batch * (maps + (2 if tuned else 1) * responses)
    )


def _layers(recipe: Recipe, classes: int, below: MapShape) -> tuple[list[nn.Module], list[LayerPlan]]:
    if recipe.network.module is not None:
        raise RecipeError(
            f"network.module {recipe.network.module!r} comes from a Python program; continue from that "
            "program"
        )
    shape: tuple[int, ...] = _shape(below)
    modules: list[nn.Module] = []
    plans: list[LayerPlan] = []
    for number, layer in enumerate(
        [*recipe.network.layers, schema.Linear(type="linear", features=classes)], 1
    ):
        try:
            built, shape, flops = _build(layer, shape)
            _check_size(prod(shape), "outputs")
        except GeometryError as error:
            raise GeometryError(f"layer {number} ({layer.type}): {error}") from error
        modules.extend(built)
        parameters = sum(p.numel() for module in built for p in module.parameters())
        plans.append(LayerPlan(layer.type, shape, flops, parameters, len(built)))
    if recipe.network.output_scale != 1:
        with torch.no_grad():
            for parameter in modules[-1].parameters():
                parameter.mul_(recipe.network.output_scale)
    if recipe.network.output != "linear":
        modules.append(_ACTIVATIONS[recipe.network.output]())
        plans.append(LayerPlan(recipe.network.output, shape, 0, 0))
    return modules, plans


_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def _shape(shape: MapShape) -> tuple[int, ...]:
    return shape.channels, shape.height, shape.width


def _build(layer: schema.Layer, shape: tuple[int, ...]) -> tuple[list[nn.Module], tuple[int, ...], int]:
    """Return the modules of one entry, their output shape, and their forward FLOPs per image."""
    match layer:
        case schema.Linear():
            inputs, outputs = prod(shape), layer.features
            _check_size(inputs * outputs, "weights")
            flatten: list[nn.Module] = [Flatten()] if len(shape) > 1 else []
            return [*flatten, Linear(inputs, outputs)], (outputs,), 2 * inputs * outputs
        case schema.Dropout():
            return [Dropout(layer.probability)], shape, 0
        case schema.Activation():
            return [_ACTIVATIONS[layer.type]()], shape, 0
        case schema.Normalisation() if layer.kind == "batch":
            features = shape[0]
            return [nn.BatchNorm1d(features) if len(shape) == 1 else BatchNorm2d(features)], shape, 0
    if len(shape) != 3:
        raise GeometryError("it needs a map, but follows a fully connected layer; put it before that layer")
    below = MapShape(*shape)
    match layer:
        case schema.Local():
            geometry = _local_geometry(layer, below)
            _check_size(geometry.parameters, "weights")
            module = LocallyConnected2d(
                below.channels,
                layer.channels,
                (below.height, below.width),
                schema.pair(layer.kernel_size),
                stride=schema.pair(layer.stride),
                padding=layer.padding,
                block=schema.pair(layer.block),
            )
            return [module], _shape(geometry.output), geometry.product_flops
        case schema.Convolution():
            y, x = schema.windows(layer.kernel_size, layer.stride, layer.padding, below)
            output = _windowed(below, y, x, layer.channels)
            _check_size(layer.channels * y.size * x.size * below.channels, "weights")
            flops = 2 * output.size * y.size * x.size * below.channels
            return _convolution(below.channels, layer.channels, y, x), _shape(output), flops
        case schema.Pool() if layer.kind == "l2":
            window = Window(layer.kernel_size, layer.stride or 1)
            pooled = _windowed(below, window, window, below.channels)
            modules: list[nn.Module] = [L2Pool2d(layer.kernel_size)]
            if layer.stride is not None and layer.stride > 1:
                modules.append(MaxPool2d(1, stride=layer.stride))  # keeps every stride-th position
            return modules, _shape(pooled), 0
        case schema.Pool():
            window = Window(layer.kernel_size, layer.stride or layer.kernel_size)
            pooled = _windowed(below, window, window, below.channels)
            kind = MaxPool2d if layer.kind == "max" else nn.AvgPool2d
            return [kind(window.size, stride=window.stride)], _shape(pooled), 0
        case schema.Normalisation():
            Smoothing(layer.size, keep=True).output(below)
            return [LocalContrastNorm2d(layer.size, padding="same")], shape, 0
    raise AssertionError(f"layer type missing in the schema: {layer!r}")


def _check_size(count: int, what: str) -> None:
    """Raise GeometryError for sizes beyond any machine, before torch overflows 64 bits."""
    if count > VALUES_MAX:
        raise GeometryError(f"it would have {count:.3g} {what}, too many for any machine; make it smaller")


def _local_geometry(layer: schema.Local, below: MapShape) -> BlockLocal:
    y, x = schema.windows(layer.kernel_size, layer.stride, layer.padding, below)
    rows, columns = schema.pair(layer.block)
    return BlockLocal(below, y, x, rows, columns, layer.channels)


def _convolution(inputs: int, outputs: int, y: Window, x: Window) -> list[nn.Module]:
    """Return a convolution by these windows; ZeroPad2d adds uneven padding, which Conv2d does not support."""
    size, stride = (y.size, x.size), (y.stride, x.stride)
    if (y.pad_before, x.pad_before) == (y.pad_after, x.pad_after):
        return [Conv2d(inputs, outputs, size, stride=stride, padding=(y.pad_before, x.pad_before))]
    return [
        nn.ZeroPad2d((x.pad_before, x.pad_after, y.pad_before, y.pad_after)),
        Conv2d(inputs, outputs, size, stride=stride),
    ]


def _windowed(below: MapShape, y: Window, x: Window, channels: int) -> MapShape:
    height, width = y.outputs(below.height), x.outputs(below.width)
    if min(height, width) < 1:
        raise GeometryError(
            f"a window {y.size} x {x.size} does not fit a map of {below}; use a smaller one, or a larger map"
        )
    return MapShape(channels, height, width)

from math import prod

import pytest
import torch
from torch.nn import functional

from cotswold.errors import GeometryError, RecipeError
from cotswold.geometry import MapShape
from cotswold.recipe import Recipe, dump, parse
from cotswold.training.losses import bce_with_logits, loss_by_name, sum_squared_error
from cotswold.training.models import build_layers, build_stacks, layer_names, planned_layers


def layered(layers: str, size: str = "[12, 10]", loss: str = "cross_entropy") -> Recipe:
    return parse(f"""
name = "layers"
[data]
source = "somewhere"
labels = "folders"
size = {size}
[network]
layers = [{layers}]
[objective]
loss = "{loss}"
[training]
strategy = "supervised"
""")


EVERY_LAYER = """
{ type = "convolution", channels = 6, kernel_size = 3, padding = 1 },
{ type = "normalisation", kind = "batch" },
{ type = "relu" },
{ type = "normalisation", kind = "contrast", size = 3 },
{ type = "local", channels = 4, kernel_size = [3, 2], stride = 2, block = [2, 1] },
{ type = "tanh" },
{ type = "pool", kind = "l2", kernel_size = 2, stride = 2 },
{ type = "pool", kind = "average", kernel_size = 2, stride = 1 },
{ type = "pool", kernel_size = 2, stride = 1 },
{ type = "sigmoid" },
{ type = "dropout", probability = 0.2 },
{ type = "linear", features = 7 },
{ type = "normalisation", kind = "batch" },
{ type = "relu" }
"""


def test_every_kind_of_layer_gives_the_shape_that_was_planned() -> None:
    recipe = layered(EVERY_LAYER, "[16, 18]")
    network = build_layers(recipe, 3, None).eval()
    x = torch.randn(2, 3, 16, 18)
    shapes = []
    for module in network.layers:
        x = module(x)
        shapes.append(tuple(x.shape[1:]))
    planned = [plan.output for plan in planned_layers(recipe, 3)]
    assert planned[-1] == (3,)
    assert [shape for shape in planned if shape not in shapes] == []
    assert x.shape == (2, 3)


def test_layers_count_the_flops_of_their_products() -> None:
    recipe = layered(
        '{ type = "convolution", channels = 4, kernel_size = 3 }, '
        '{ type = "local", channels = 2, kernel_size = 3 }'
    )
    convolution, local, full = planned_layers(recipe, 5)
    assert convolution.forward_flops == 2 * (4 * 10 * 8) * 27
    assert local.forward_flops == 2 * (2 * 8 * 6) * 36
    assert full.forward_flops == 2 * prod(local.output) * 5
    assert local.parameters == 8 * 6 * (36 * 2 + 2)


def test_an_update_needs_no_gradient_by_what_the_lowest_learnt_product_reads() -> None:
    recipe = layered('{ type = "relu" }, { type = "linear", features = 4 }')
    tuned = recipe.model_copy(update={"network": recipe.network.model_copy(update={"finetune": True})})
    stacks = build_stacks(
        parse("""
name = "stacks"
data = { source = "somewhere", size = [12, 10] }
[network]
stacks = [
  { kernel_size = 4, block = 1, channels = 2, pool = 1, norm = 1 },
  { kernel_size = 3, block = 1, channels = 3, pool = 1, norm = 1 },
]
[training]
strategy = "greedy"
""")
    )
    first, second = (stack.geometry.forward_flops for stack in stacks.stacks)
    inputs = stacks.stacks[-1].geometry.output.size
    full, last = 2 * inputs * 4, 2 * 4 * 5
    assert build_layers(recipe, 5, stacks).update_flops == first + second + 2 * full + 3 * last
    assert build_layers(tuned, 5, stacks).update_flops == 2 * first + 3 * (second + full + last)
    alone = build_layers(recipe, 5, None)
    assert alone.update_flops == 2 * (2 * 360 * 4) + 3 * last


def test_planning_allocates_nothing() -> None:
    recipe = layered('{ type = "linear", features = 1000000000 }')
    assert planned_layers(recipe, 5)[0].parameters == 1_000_000_000 * 361


def test_a_map_layer_above_a_full_layer_is_refused_by_number() -> None:
    recipe = layered('{ type = "linear", features = 4 }, { type = "local", channels = 2, kernel_size = 1 }')
    with pytest.raises(GeometryError, match=r"layer 2 \(local\)"):
        build_layers(recipe, 2, None)


def test_a_window_larger_than_its_map_is_refused_by_number() -> None:
    recipe = layered('{ type = "pool", kernel_size = 11 }')
    with pytest.raises(GeometryError, match=r"layer 1 \(pool\).*11"):
        planned_layers(recipe, 2)


def test_the_seed_alone_decides_the_initial_weights() -> None:
    recipe = layered('{ type = "local", channels = 2, kernel_size = 3 }')
    before = torch.get_rng_state()
    one, same = (build_layers(recipe, 2, None) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)


def test_outputs_begin_as_large_as_asked_and_nothing_else_changes() -> None:
    layers = '{ type = "linear", features = 7 }, { type = "tanh" }'
    whole, none, half = (
        build_layers(recipe, 3, None)
        for scale in ("1.0", "0.0", "0.5")
        for recipe in (parse(dump(layered(layers)), overrides=[f"network.output_scale={scale}"]),)
    )
    given = torch.randn(2, 3, 12, 10)
    assert not none(given).any()
    torch.testing.assert_close(half(given), 0.5 * whole(given))
    for one, other in zip(list(whole.parameters())[:-2], list(none.parameters())[:-2], strict=True):
        assert torch.equal(one, other)


def test_only_layers_have_a_scale_of_outputs() -> None:
    for wrong in ("network.output_scale=-1", "network.module=mine"):
        with pytest.raises(RecipeError, match="output_scale"):
            parse(dump(layered("")), overrides=["network.output_scale=0.5", wrong])


def test_logistic_is_the_sum_of_logistic_losses() -> None:
    scores = torch.tensor([[0.0, 2.0, -1.0], [1.0, 0.0, 0.5]], dtype=torch.float64)
    labels = torch.tensor([1, 0])
    by_hand = 0.0
    for row, label in zip(scores, labels, strict=True):
        for k, score in enumerate(row):
            p = torch.sigmoid(score)
            by_hand -= float(torch.log(p if k == label else 1 - p))
    assert float(bce_with_logits(scores, labels)) == pytest.approx(by_hand / 2)
    assert loss_by_name("bce_with_logits") is bce_with_logits


def test_squared_error_is_against_one_for_the_class_or_against_given_values() -> None:
    outputs = torch.tensor([[0.5, 2.0], [1.0, 0.0]])
    by_classes = (0.5**2 + 1.0**2 + 0.0 + 0.0) / 2
    assert float(sum_squared_error(outputs, torch.tensor([1, 0]))) == pytest.approx(by_classes)
    given = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    assert float(sum_squared_error(outputs, given)) == pytest.approx((1.5**2 + 1.0 + 0.0 + 1.0) / 2)


def test_a_loss_that_nobody_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(RecipeError, match="bce_with_logits, cross_entropy, squared_error"):
        loss_by_name("hinge")


def test_stacks_of_a_recipe_follow_one_another() -> None:
    recipe = parse("""
name = "stacks"
[data]
source = "somewhere"
size = [20, 24]
[network]
stacks = [
  { kernel_size = 6, stride = 2, block = [2, 1], channels = 3, pool = 3, norm = 3 },
  { kernel_size = 3, block = 1, channels = 2, pool = 1, norm = 1, sparsity = 0.7 },
]
[objective]
sparsity = 0.3
[training]
strategy = "greedy"
""")
    network = build_stacks(recipe)
    assert network.stacks[0].geometry.input == MapShape(3, 20, 24)
    assert [stack.sparsity for stack in network.stacks] == [0.3, 0.7]
    assert network(torch.randn(2, 3, 20, 24)).shape[1:] == (2, 8, 2)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (4, 1), (4, 3), (5, 2), (1, 2), ([2, 5], [3, 2])])
def test_same_padding_gives_an_output_for_every_stride_of_the_map(
    size: int | list[int], stride: int | list[int]
) -> None:
    fields = f'channels = 2, kernel_size = {size}, stride = {stride}, padding = "same"'
    (fy, fx), (sy, sx) = (each if isinstance(each, list) else [each, each] for each in (size, stride))
    torch.manual_seed(0)
    x = torch.randn(2, 3, 12, 10)
    wanted = (2, -(-12 // sy), -(-10 // sx))
    for kind in ("convolution", "local"):
        network = build_layers(layered(f'{{ type = "{kind}", {fields} }}'), 4, None)
        assert planned_layers(layered(f'{{ type = "{kind}", {fields} }}'), 4)[0].output == wanted
        layer = network.layers[:-2]  # without Flatten and the layer of classes
        assert layer(x).shape[1:] == wanted
    convolution = build_layers(layered(f'{{ type = "convolution", {fields} }}'), 4, None).layers[:-2]
    rows, columns = (
        max((n - 1) * s + f - e, 0)
        for n, s, f, e in zip(wanted[1:], (sy, sx), (fy, fx), (12, 10), strict=True)
    )
    padded = functional.pad(x, (columns // 2, -(-columns // 2), rows // 2, -(-rows // 2)))
    conv = list(convolution.children())[-1]
    assert isinstance(conv, torch.nn.Conv2d)
    expected = functional.conv2d(padded, conv.weight, conv.bias, stride=(sy, sx))
    torch.testing.assert_close(convolution(x), expected)


def test_a_recipe_of_a_module_from_python_is_not_taken_for_one_without_layers() -> None:
    text = """
    name = "mine"
    data = { source = "images", labels = "folders" }
    network = { module = "mine" }
    training = { strategy = "supervised" }
    """
    with pytest.raises(RecipeError, match=r"network.module 'mine' comes from a Python program"):
        build_layers(parse(text), 3, None)


def test_layers_are_called_by_their_numbers_in_the_recipe() -> None:
    """A fully connected layer on a map is two modules, like an uneven convolution; the outputs come last."""
    layers = (
        '{ type = "convolution", channels = 2, kernel_size = 2, padding = "same" }, { type = "relu" }, '
        '{ type = "linear", features = 4 }'
    )
    network = build_layers(layered(layers), 3, None)
    names = layer_names(network)
    learning = {name.rpartition(".")[0] for name, _ in network.named_parameters()}
    assert sorted(names[each] for each in learning) == ["layer 1", "layer 3", "layer 4"]
    assert len(names) == len(network.layers)
    assert layer_names(network.layers) == {}

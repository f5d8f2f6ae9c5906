from __future__ import annotations

import copy
import itertools

import pytest
import torch

from cotswold.analysis.layers import Layer, StackLayers
from cotswold.analysis.selectivity.neurons import locate, row_of, rows
from cotswold.analysis.selectivity.top_activations import top_activations
from cotswold.errors import UserError
from cotswold.nn import StackNetwork

ALL = [Layer(stack, part) for stack in (0, 1) for part in ("filters", "pooled", "output")]


@pytest.mark.parametrize("chosen", [c for n in (1, 2, 6) for c in itertools.combinations(ALL, n)])
def test_layers_answer_as_the_network_itself_does(
    network: StackNetwork, images: torch.Tensor, chosen: tuple[Layer, ...]
) -> None:
    found = dict(StackLayers(network, chosen)(images))
    assert list(found) == [str(layer) for layer in ALL if layer in chosen]
    for layer in chosen:
        wanted = network.forward_to(images, layer.stack, layer.part)
        torch.testing.assert_close(found[str(layer)], wanted)


def test_images_are_brought_to_where_the_stacks_are(network: StackNetwork, images: torch.Tensor) -> None:
    elsewhere = copy.deepcopy(network).to("meta")
    assert StackLayers(elsewhere, ALL).first(images).device.type == "meta"


@pytest.mark.parametrize("name", ["pooled", "0.pooled", "1.poled", "x.filters", "1"])
def test_a_name_that_is_no_layer_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="not a layer"):
        Layer.parse(name)


def test_a_stack_that_is_not_there_is_refused(network: StackNetwork) -> None:
    with pytest.raises(UserError, match=r"2 stacks; layer 3\.pooled"):
        StackLayers(network, [Layer(2, "pooled")])


def test_rows_and_places_of_neurons_agree() -> None:
    maps = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    for row, answers in enumerate(rows(maps)):
        channel, y, x = place = locate(row, (3, 4, 5))
        assert torch.equal(answers, maps[:, channel, y, x])
        assert row_of(place, (3, 4, 5)) == row


def test_extremes_are_those_of_a_full_sort_whatever_the_batches() -> None:
    answers = torch.randn(53, 6, generator=torch.Generator().manual_seed(0))
    found = top_activations(
        lambda x: [("layer", x)], torch.split(answers, 10), [("layer", (4,)), ("layer", (1,))], 7
    )
    for index, neuron in enumerate((4, 1)):
        order = answers[:, neuron].argsort(descending=True).tolist()
        assert [one.image for one in found.highest[index]] == order[:7]
        assert [one.image for one in found.lowest[index]] == order[::-1][:7]
        assert found.lowest[index][0].response == pytest.approx(float(answers[:, neuron].min()))

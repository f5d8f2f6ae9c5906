from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch

from cotswold.analysis.selectivity.kmeans_baseline import kmeans_network
from cotswold.analysis.selectivity.optimal_stimuli import Ascent, correlations, optimal_stimuli, percentile
from cotswold.analysis.selectivity.results import Clustering
from cotswold.analysis.selectivity.top_activations import strongest_means
from cotswold.errors import SourceError
from cotswold.nn import StackNetwork


def test_the_best_stimulus_of_a_linear_filter_is_the_filter() -> None:
    filters = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    found = optimal_stimuli(
        lambda x: torch.einsum("icyx,ncyx->in", x, filters), (3, 6, 6), [(4,), (0,)], ascent=Ascent(steps=60)
    )
    for image, neuron, response in zip(found.images, (4, 0), found.responses, strict=True):
        wanted = filters[neuron] / filters[neuron].square().mean().sqrt()
        torch.testing.assert_close(image, wanted, atol=0.05, rtol=0)
        assert float(response) == pytest.approx(float((wanted * filters[neuron]).sum()), rel=1e-3)
    assert not found.is_even


def test_stimuli_lie_on_the_sphere_and_see_nothing_outside_the_field(network: StackNetwork) -> None:
    found = optimal_stimuli(lambda x: network.forward_to(x, 0, "pooled"), (3, 16, 16), [(1, 0, 0)])
    assert float(found.images[0].square().mean()) == pytest.approx(1.0, rel=1e-4)
    assert float(found.images[0, :, 12:, 12:].abs().max()) == 0
    assert found.is_even


def test_no_random_image_excites_a_neuron_more_than_its_stimulus(network: StackNetwork) -> None:
    def answer(x: torch.Tensor) -> torch.Tensor:
        return network.forward_to(x, 1, "pooled")

    found = optimal_stimuli(answer, (3, 16, 16), [(0, 3, 3)])
    noise = torch.randn(200, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    noise /= noise.square().mean((1, 2, 3), keepdim=True).sqrt()
    with torch.no_grad():
        assert float(found.responses[0]) > 1.2 * float(answer(noise)[:, 0, 3, 3].max())


def test_an_even_layer_correlates_without_a_sign() -> None:
    images = torch.randn(1, 1, 4, 4)
    found = optimal_stimuli(lambda x: (x * images).sum((1, 2, 3))[:, None] ** 2, (1, 4, 4), [(0,)])
    assert correlations(found, -images[0])[0] == pytest.approx(correlations(found, images[0])[0])
    assert correlations(found, images[0])[0] > 0.98


def test_a_percentile_counts_what_lies_below() -> None:
    assert percentile(0.5, np.array([0.1, 0.2, 0.6, 0.7])) == 50.0


def test_a_dictionary_finds_the_clusters_that_images_are_made_of_whatever_their_sign(
    network: StackNetwork,
) -> None:
    single = StackNetwork(list(network.stacks)[:1])
    layer = single.stacks[0].geometry.filters
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 3, 16, 16, generator=generator)
    signs = torch.where(torch.arange(600) < 60, 1.0, -1.0)[
        :, None, None, None
    ]  # entries start with the other sign
    noise = 0.3 * torch.randn(600, 3, 16, 16, generator=generator)
    x = centres[torch.randint(0, 4, (600,), generator=generator)] * signs + noise
    found = kmeans_network(single, lambda: torch.split(x, 60))[0].stacks[0]
    torch.testing.assert_close(found.filters.detach().square().sum((2, 3)), torch.ones(layer.norms_shape))
    for by, bx in ((0, 0), (2, 3)):
        patch = centres[:, :, 2 * by : 2 * by + 6, 2 * bx : 2 * bx + 6].permute(0, 2, 3, 1).reshape(4, -1)
        likeness = (patch / patch.norm(dim=1, keepdim=True)) @ found.filters[by, bx].detach().flatten(0, 1)
        assert float(likeness.abs().max(1).values.min()) > 0.985


def test_a_dictionary_leaves_the_network_as_it_was(network: StackNetwork, images: torch.Tensor) -> None:
    before = network(images)
    other, _ = kmeans_network(network, lambda: [images])
    assert torch.equal(network(images), before)
    assert other.stacks[0] is network.stacks[0]
    assert not torch.equal(other(images), before)


def test_a_dictionary_needs_images(network: StackNetwork) -> None:
    with pytest.raises(SourceError, match="k-means"):
        kmeans_network(network, list)


def test_a_stimulus_begins_where_it_is_told_and_keeps_the_signs_that_magnitudes_forget() -> None:
    wanted = torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(1))

    def magnitudes(x: torch.Tensor) -> torch.Tensor:
        return (x * wanted).abs().sum((1, 2, 3))[:, None, None, None]

    start = wanted.sign() * 0.1 + torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(2)) * 0.02
    found = optimal_stimuli(magnitudes, (2, 3, 3), [(0, 0, 0)], starts=start)
    assert correlations(found, wanted[0])[0] > 0.95


def test_the_mean_of_the_strongest_images_is_that_of_sorting_all() -> None:
    images = torch.randn(30, 1, 2, 2, generator=torch.Generator().manual_seed(3))
    answers = images.sum(1, keepdim=True)
    neurons = [("1.output", (0, 1, 0)), ("1.output", (0, 0, 1))]
    means = strongest_means(
        lambda x: [("1.output", x.sum(1, keepdim=True))],
        lambda: [images[:7], images[7:20], images[20:]],
        neurons,
        count=5,
    )
    for mean, (_, place) in zip(means, neurons, strict=True):
        order = answers[(slice(None), *place)].argsort(descending=True)[:5]
        assert torch.allclose(mean, images[order].mean(0), atol=1e-6)


def clustered(network: StackNetwork, images: int) -> tuple[StackNetwork, list[torch.Tensor]]:
    """Return one stack, and batches of images that are noisy copies of a few."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(12, 3, 16, 16, generator=generator)
    x = centres[torch.randint(0, 12, (images,), generator=generator)]
    x = x + 0.5 * torch.randn(images, 3, 16, 16, generator=generator)
    return StackNetwork(list(network.stacks)[:1]), list(torch.split(x, 40))


def test_a_dictionary_does_not_depend_on_the_clock(
    network: StackNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    single, batches = clustered(network, 400)
    expected, found = kmeans_network(single, lambda: batches)
    hours = itertools.count(0, 3600)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(hours)))
    slow, said = kmeans_network(single, lambda: batches)
    assert torch.equal(slow.stacks[0].filters, expected.stacks[0].filters)
    assert said == found and found.converged and found.images == 400


def test_a_dictionary_that_has_settled_gains_nothing_by_another_pass(network: StackNetwork) -> None:
    single, batches = clustered(network, 400)
    dictionary, found = kmeans_network(single, lambda: batches)

    def likeness(filters: torch.Tensor) -> float:
        total = 0.0
        for batch in batches:
            for by, bx in ((0, 0), (3, 2)):
                patch = batch[:, :, 2 * by : 2 * by + 6, 2 * bx : 2 * bx + 6].permute(0, 2, 3, 1)
                patch = patch.reshape(len(batch), -1)
                cosine = (patch / patch.norm(dim=1, keepdim=True)) @ filters[by, bx].flatten(0, 1)
                total += float(cosine.abs().max(1).values.sum())
        return total

    settled = likeness(dictionary.stacks[0].filters.detach())
    longer, _ = kmeans_network(single, lambda: batches, passes_max=found.passes - 1)
    assert likeness(longer.stacks[0].filters.detach()) == pytest.approx(settled, rel=3e-3)
    first, _ = kmeans_network(single, lambda: batches, passes_max=1)
    assert settled > likeness(first.stacks[0].filters.detach())


def test_a_dictionary_that_is_ended_before_it_has_settled_says_so(network: StackNetwork) -> None:
    single, batches = clustered(network, 200)
    _, found = kmeans_network(single, lambda: batches, passes_max=2)
    assert found == Clustering(passes=2, images=200, converged=False)

from __future__ import annotations

from cotswold.data.preprocessing.whitening import NYQUIST, ROLL_OFF, cosine_radii
from cotswold.recipe import load
from cotswold.recipe.schema import ImageData


def test_images_of_the_demo_have_a_dimension_for_every_neuron_of_a_first_field() -> None:
    """Neurons in excess of the dimensions of their field have nothing to learn, and stay noise."""
    recipe = load("demo")
    layer = recipe.stack_geometries()[0].filters
    assert isinstance(recipe.data, ImageData) and recipe.data.whiten
    inside = cosine_radii(layer.y.size, layer.x.size) <= recipe.data.whiten_cutoff * NYQUIST * ROLL_OFF
    assert int(inside.sum()) * layer.input.channels >= layer.neurons

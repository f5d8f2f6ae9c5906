"""Pooling and normalisation modules, compared with torch's own convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from cotswold.errors import GeometryError
from cotswold.nn import L2Pool2d, LocalContrastNorm2d


@pytest.mark.parametrize("padding", [0, "same"])
def test_pooling_is_the_root_of_a_convolution_of_squares_with_ones(padding: Any) -> None:
    x = torch.randn(2, 3, 7, 9, dtype=torch.float64)
    ones = torch.ones(3, 1, 3, 3, dtype=torch.float64)
    expected = (F.conv2d(x.square(), ones, padding=1 if padding else 0, groups=3) + 1e-3).sqrt()
    torch.testing.assert_close(L2Pool2d(3, padding, epsilon=1e-3)(x), expected)


@pytest.mark.parametrize("padding", [0, "same"])
def test_normalised_maps_do_not_change_with_brightness_and_contrast(padding: Any) -> None:
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    norm = LocalContrastNorm2d(5, padding)
    torch.testing.assert_close(norm(3 * x + 7), norm(x))


def test_each_step_of_normalisation_shrinks_the_map_by_the_window_or_keeps_it() -> None:
    x = torch.randn(2, 3, 16, 13)
    assert LocalContrastNorm2d(5)(x).shape == (2, 3, 8, 5)
    assert LocalContrastNorm2d(5, padding="same")(x).shape == x.shape


def test_where_there_is_no_contrast_the_floor_divides() -> None:
    x = 1e-5 * torch.randn(1, 2, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(
        LocalContrastNorm2d(5, floor=0.5)(x), LocalContrastNorm2d(5, floor=0.01)(x) / 50
    )


@pytest.mark.parametrize("layer", [L2Pool2d(3), LocalContrastNorm2d(3)])
def test_a_single_map_and_an_empty_batch_are_taken(layer: L2Pool2d | LocalContrastNorm2d) -> None:
    x = torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(layer(x[1]), layer(x)[1])
    assert layer(x[:0]).shape == (0, *layer(x).shape[1:])


@pytest.mark.parametrize("layer", [L2Pool2d(9), LocalContrastNorm2d(9)])
def test_a_window_larger_than_the_map_is_refused(layer: L2Pool2d | LocalContrastNorm2d) -> None:
    with pytest.raises(GeometryError, match="window of 9"):
        layer(torch.zeros(1, 1, 8, 20))


@pytest.mark.parametrize("layer", [L2Pool2d(3), LocalContrastNorm2d(3)])
def test_what_is_not_a_map_is_refused(layer: L2Pool2d | LocalContrastNorm2d) -> None:
    with pytest.raises(GeometryError, match=r"got 2 dimensions"):
        layer(torch.zeros(8, 8))


@pytest.mark.parametrize("layer", [L2Pool2d(3), LocalContrastNorm2d(3)])
def test_what_holds_no_floating_point_numbers_is_refused(layer: L2Pool2d | LocalContrastNorm2d) -> None:
    with pytest.raises(GeometryError, match=r"input of torch\.uint8; use x\.float\(\)"):
        layer(torch.zeros(1, 8, 8, dtype=torch.uint8))
    with pytest.raises(GeometryError, match=r"takes a torch\.Tensor, not list"):
        layer([[0.0]])


def test_a_window_may_be_a_whole_number_of_numpy() -> None:
    assert repr(L2Pool2d(np.int64(5))) == repr(L2Pool2d(5))  # type: ignore[arg-type]  # NumPy


@pytest.mark.parametrize("arguments", [(0,), (True,), (2.5,), (3, 1), (3, "valid")])
@pytest.mark.parametrize("kind", [L2Pool2d, LocalContrastNorm2d])
def test_windows_that_make_no_sense_are_refused(kind: Any, arguments: Any) -> None:
    with pytest.raises(GeometryError, match=r"padding must be|window size must be"):
        kind(*arguments)


def test_a_floor_that_would_let_a_division_by_zero_pass_is_refused() -> None:
    with pytest.raises(GeometryError, match="floor"):
        LocalContrastNorm2d(5, floor=0.0)


def test_the_reprs_show_the_arguments() -> None:
    assert repr(L2Pool2d(5, "same")) == "L2Pool2d(5, padding='same', epsilon=1e-06)"
    assert repr(LocalContrastNorm2d(5)) == "LocalContrastNorm2d(5, padding=0, floor=0.01)"


def test_both_are_compiled_for_any_number_of_images() -> None:
    both = torch.nn.Sequential(L2Pool2d(3, padding="same"), LocalContrastNorm2d(3, padding="same"))
    compiled = torch.compile(both, fullgraph=True, dynamic=True)
    for images in (6, 9):
        x = torch.rand(images, 3, 8, 8)
        torch.testing.assert_close(compiled(x), both(x))

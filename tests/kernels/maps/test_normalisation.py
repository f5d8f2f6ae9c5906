"""Contrast normalisation on kernels: writes past the caches, many channels, means far from 0."""

from __future__ import annotations

import pytest
import torch
from tests.support.ops.layers import random_map
from torch import Tensor

from cotswold import ops
from cotswold.geometry import MapShape, Smoothing
from cotswold.kernels import available
from cotswold.kernels.compile import jobs
from cotswold.kernels.maps import normalisation
from cotswold.ops import contrast
from cotswold.ops.pooling import workers

pytestmark = pytest.mark.skipif(available.compile_error() is not None, reason="no kernels here")


def both(x: Tensor, smoothing: Smoothing) -> tuple[Tensor, Tensor]:
    """Return the normalised map and a gradient."""
    y = ops.contrast_norm(x, smoothing, 0.1)
    return y, contrast.contrast_norm_backward(y * y, x, smoothing, 0.1)


@pytest.mark.parametrize("smoothing", [Smoothing(5), Smoothing(4, keep=True)])
@pytest.mark.parametrize("images", [32, 48, 112])
def test_maps_written_past_the_caches_have_the_same_bits(
    smoothing: Smoothing, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ops.images_last(random_map(MapShape(7, 14, 12), images, dtype=torch.float32))
    expected = both(x, smoothing)
    streamed = []
    asked = normalisation.Normalisation._streams

    def noted(*arguments: object) -> bool:
        streamed.append(asked(*arguments))  # type: ignore[arg-type]  # handed on as it came
        return streamed[-1]

    monkeypatch.setattr(normalisation.Normalisation, "_streams", noted)
    monkeypatch.setattr(normalisation, "STREAM_BYTES", 0)
    jobs.READY.clear()
    got = both(x, smoothing)
    assert streamed == [True, False, True]  # a map of means is read again at once
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_lines_that_are_not_whole_are_not_written_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalisation, "STREAM_BYTES", 0)
    x = ops.images_last(random_map(MapShape(3, 11, 12), 40, dtype=torch.float32))
    expected = both(x[:32].clone(), Smoothing(5))
    wide = ops.images_last(random_map(MapShape(3, 3, 4), 40, dtype=torch.float32)).fill_(float("nan"))
    inside = wide[1:33]
    kernel = contrast._normalisation(MapShape(3, 11, 12), Smoothing(5), 0.1, x.dtype, workers(x[:32]))
    kernel.normalise(x[:32], inside)
    assert torch.equal(inside, expected[0])
    assert int(wide.isnan().sum()) == wide.numel() - inside.numel()


@pytest.mark.parametrize("channels", [3, 19, 50])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_a_common_offset_and_many_channels_cost_no_more_accuracy_than_in_torch(
    channels: int, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ops.images_last(random_map(MapShape(channels, 13, 12), 20, dtype=torch.float32) + offset)
    got, smoothing = both(x, Smoothing(5)), Smoothing(5)
    monkeypatch.setattr(contrast, "has_cpu_kernel", lambda _: False)
    plain, right = both(x, smoothing), both(x.double(), smoothing)
    for one, other, truth in zip(got, plain, right, strict=True):
        errors = [float((each.double() - truth).square().mean().sqrt()) for each in (one, other)]
        assert errors[0] <= 2 * errors[1] + 1e-7 * float(truth.abs().max())

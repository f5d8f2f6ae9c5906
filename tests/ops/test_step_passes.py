"""The passes over maps between the products of a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.support.kernels.operations import processors
from torch import Tensor

from cotswold import ops
from cotswold.kernels import available
from cotswold.kernels.maps import elementwise
from cotswold.kernels.maps.tasks import Workers
from cotswold.ops import step_passes

needs_kernels = pytest.mark.skipif(available.compile_error() is not None, reason="no kernels here")
DTYPES = [torch.float32, torch.float64]
EVERY = [
    elementwise.DOT,
    elementwise.TOTAL,
    elementwise.SUBTRACT,
    elementwise.SCALE,
    elementwise.GRADIENT,
    elementwise.PENALTY,
]


def random_map(images: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return ops.images_last(torch.randn((images, 3, 9, 40), generator=generator).to(dtype))


def results(kind: elementwise.Pass, dtype: torch.dtype, images: int, workers: Workers) -> list[Tensor]:
    maps = [random_map(images, dtype, seed) for seed in range(kind.maps)]
    scales = [torch.rand((9, 40, 3), generator=torch.Generator().manual_seed(9)).to(dtype)] * kind.scales
    sums = elementwise.run(kind, maps, scales, [0.3, 0.7][: kind.numbers], workers)
    return [sums, *maps]


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_neither_threads_nor_vectors_change_a_bit(kind: elementwise.Pass, dtype: torch.dtype) -> None:
    first_here, *narrower = processors()
    name = str(dtype).removeprefix("torch.")
    for images in (1, 37, 100):
        first, *others = (
            results(kind, dtype, images, Workers(images, name, processor, threads))
            for processor, threads in ((first_here, 1), (first_here, 2), *((each, 1) for each in narrower))
        )
        for other in others:
            assert all(torch.equal(*pair) for pair in zip(first, other, strict=True))


def by_torch(monkeypatch: pytest.MonkeyPatch, function: Callable[[], object]) -> object:
    with monkeypatch.context() as patched:
        patched.setenv(available.VARIABLE, "torch")
        return function()


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_passes_of_kernels_agree_with_torch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_passes() -> list[Tensor]:
        a, b, factor = random_map(37, dtype, 1), random_map(37, dtype, 2), torch.tensor(1.7)
        window = random_map(37, dtype, 3)
        scales, units = (torch.rand((3, 9, 40), generator=torch.Generator().manual_seed(s)) for s in (4, 5))
        found = [step_passes.dot(a, b), step_passes.total(a)]
        found += [*step_passes.penalty(a, 0.1, 0.4)]
        found += [*step_passes.subtract(a, b, factor, 0.25), a]
        found += [step_passes.scale(a, scales, units), a.clone()]
        step_passes.add_scaled(a, b.clone(memory_format=torch.preserve_format), units, factor)
        part = window[:, :, 2:7, 3:30]
        found += [step_passes.dot(part, b[:, :, 1:6, 4:31])]
        step_passes.subtract(part, b[:, :, 1:6, 4:31], factor, 0.5)
        return [*found, a, window]

    own, plain = all_passes(), by_torch(monkeypatch, all_passes)
    assert isinstance(plain, list)
    for found, expected in zip(own, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@needs_kernels
def test_a_dot_of_float32_is_as_exact_as_one_of_short_chains() -> None:
    a = random_map(100, torch.float32, 1)
    exact = a.double().square().sum()
    assert abs(step_passes.dot(a, a) - exact) < 1e-6 * exact
    assert abs(step_passes.total(a) - a.double().sum()) < 1e-6 * a.double().abs().sum()


@needs_kernels
def test_an_infinite_value_stays_visible_in_the_sum() -> None:
    a = random_map(5, torch.float32, 1)
    a[3, 1, 4, 2] = torch.inf
    assert torch.isinf(step_passes.dot(a, a)) and torch.isinf(step_passes.total(a))

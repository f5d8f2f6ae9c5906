import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.support.bench.small_cases import LAYER, UNTIED

from cotswold import ops
from cotswold.bench.kernels.baseline_jax import jax_passes
from cotswold.bench.kernels.baselines import (
    BOTH,
    FORWARD,
    Operands,
    by_position,
    conventional_filters,
    cotswold_passes,
    unfolded,
    unfolded_passes,
)
from cotswold.bench.kernels.ceilings import NUMPY, TORCH_MM, dense_flops, dense_products
from cotswold.bench.kernels.perceptron import cotswold_gradient, plain_gradient
from cotswold.bench.kernels.shapes import Perceptron
from cotswold.bench.kernels.stacks import cotswold_products


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _torched(values: object) -> torch.Tensor:
    return torch.tensor(pytest.importorskip("jax").numpy.asarray(values).tolist())


def test_unfold_and_einsum_compute_what_we_compute() -> None:
    operands = Operands.random(LAYER, 5)
    baseline, ours = unfolded(operands), cotswold_products(operands)
    product, outer = ours["Wx"](), ours["δx'"]()
    assert isinstance(product, torch.Tensor) and isinstance(outer, torch.Tensor)
    torch.testing.assert_close(baseline["Wx"](), by_position(product, LAYER))
    torch.testing.assert_close(baseline["W'x"](), ours["W'x"]())
    torch.testing.assert_close(baseline["δx'"](), conventional_filters(outer, LAYER))


def test_an_untied_layer_by_unfold_has_our_output_and_gradients() -> None:
    operands = Operands.random(UNTIED, 5)
    ours: Any = cotswold_passes(operands)
    theirs: Any = unfolded_passes(operands)
    torch.testing.assert_close(theirs[FORWARD](), ours[FORWARD]())
    (y, to_x, to_filters), (their_y, their_x, their_filters) = ours[BOTH](), theirs[BOTH]()
    torch.testing.assert_close((their_y, their_x), (y, to_x))
    torch.testing.assert_close(their_filters, conventional_filters(to_filters, UNTIED))


def test_maps_of_a_foreign_model_come_back_contiguous() -> None:
    passes: Any = cotswold_passes(Operands.random(UNTIED, 3))
    y, to_x, _ = passes[BOTH]()
    assert passes[FORWARD]().is_contiguous() and y.is_contiguous() and to_x.is_contiguous()


def test_jax_computes_the_product_of_blocks_that_we_compute() -> None:
    pytest.importorskip("jax")
    operands = Operands.random(LAYER, 5)
    baseline: Any = jax_passes(operands)
    by, bx = LAYER.grid
    # the actions wait for their results, and hand them on
    product = _torched(baseline[FORWARD]()).reshape(5, LAYER.neurons, by * bx)
    torch.testing.assert_close(product, unfolded(operands)["Wx"]())


def test_an_untied_layer_by_jax_has_our_output_and_gradients() -> None:
    pytest.importorskip("jax")
    operands = Operands.random(UNTIED, 3)
    ours: Any = cotswold_passes(operands)
    theirs: Any = jax_passes(operands)
    torch.testing.assert_close(_torched(theirs[FORWARD]()), ours[FORWARD]())
    y, to_x, to_filters = ours[BOTH]()
    their_y, their_x, their_filters = (_torched(one) for one in theirs[BOTH]())
    torch.testing.assert_close((their_y, their_x), (y, to_x))
    expected = conventional_filters(to_filters, UNTIED).permute(2, 1, 0)
    torch.testing.assert_close(their_filters.flatten(2), expected)


def test_without_jax_it_is_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert jax_passes(Operands.random(UNTIED, 1)) == {}


def test_bunyips_network_has_the_same_value_and_gradient_in_plain_pytorch() -> None:
    network = Perceptron(7, 5, 9, 6)
    ours: Any = cotswold_gradient(network)()
    theirs: Any = plain_gradient(network)()
    for mine, plain in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, plain)


def test_bunyips_flops_are_counted_as_in_the_paper() -> None:
    # 400-480-3203: n_p (4 n_i n_h + 6 n_h n_o)
    assert Perceptron(400, 480, 3203, 1).flops == 4 * 400 * 480 + 6 * 480 * 3203


def test_every_library_computes_the_same_dense_product(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([torch.eye(16) * 2, torch.arange(256.0).view(16, 16)])
    monkeypatch.setattr(torch, "randn", lambda *_: next(drawn))
    expected = 2 * torch.arange(256.0).view(16, 16)
    found = dense_products(16)
    assert {TORCH_MM, NUMPY} <= set(found)
    for action in found.values():
        torch.testing.assert_close(torch.as_tensor(action()), expected)


def test_a_product_is_counted_as_two_flops_a_term() -> None:
    assert dense_flops(10) == 2000


def test_the_images_of_our_operands_are_last_so_that_nothing_is_transposed() -> None:
    product: Any = cotswold_products(Operands.random(LAYER, 5))["Wx"]()
    assert ops.images_last(product) is product

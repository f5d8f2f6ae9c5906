import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cotswold import ops
from cotswold.bench.ceilings import dense_flops, dense_products
from cotswold.bench.kernels import Effort, kernels, measured
from cotswold.bench.operations import OURS, PRODUCTS, UNFOLD
from cotswold.bench.picture import draw
from cotswold.bench.rivals import Operands, by_place, conventional_filters, jax_products, unfolded
from cotswold.bench.shapes import Shape, quick_shapes, shapes
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window

SMALLEST = Effort(rounds=2, dense_size=32)
LAYER = BlockLocal(MapShape(2, 9, 11), Window(4, 2), Window(3, 2, 1, 1), rows=2, columns=1, depth=3)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def operands() -> Operands:
    torch.manual_seed(0)
    x, delta = torch.randn(5, 2, 9, 11), torch.randn(5, 3, LAYER.output.height, LAYER.output.width)
    return Operands(x, delta, ops.random_filters(LAYER, 0, 0), LAYER)


def _small_stack() -> Shape:
    layer = BlockLocal(MapShape(2, 12, 12), Window(4, 2), Window(4, 2), 2, 2, 3)
    stack = StackGeometry(layer, Smoothing(3, keep=True), Smoothing(3, keep=True))
    return Shape("small", "recipe", layer, 4, stack)


def test_unfold_and_einsum_compute_what_we_compute(operands: Operands) -> None:
    rival = unfolded(operands)
    product = ops.local_product(operands.x, operands.filters, LAYER)
    torch.testing.assert_close(rival["Wx"](), by_place(product, LAYER))
    torch.testing.assert_close(rival["W'x"](), ops.local_adjoint(operands.delta, operands.filters, LAYER))
    outer = ops.local_outer(operands.delta, operands.x, LAYER)
    torch.testing.assert_close(rival["δx'"](), conventional_filters(outer, LAYER))


def test_jax_computes_what_we_compute(operands: Operands) -> None:
    numpy = pytest.importorskip("jax").numpy
    rival: dict[str, Any] = jax_products(operands)
    ours = unfolded(operands)
    by, bx = LAYER.grid

    def torched(values: object) -> torch.Tensor:
        return torch.tensor(numpy.asarray(values).tolist())

    # the actions wait for their results, and hand them on
    product, outer = torched(rival["Wx"]()), torched(rival["δx'"]())
    torch.testing.assert_close(product.reshape(5, LAYER.neurons, by * bx), ours["Wx"]())
    expected: Any = ours["δx'"]()
    torch.testing.assert_close(outer.reshape(LAYER.neurons, -1, by * bx), expected.permute(2, 1, 0))


def test_without_jax_it_is_no_contestant(operands: Operands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert jax_products(operands) == {}


def test_every_library_computes_the_same_dense_product(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([torch.eye(16) * 2, torch.arange(256.0).view(16, 16)])
    monkeypatch.setattr(torch, "randn", lambda *_: next(drawn))
    expected = 2 * torch.arange(256.0).view(16, 16)
    found = dense_products(16)
    assert {"torch.mm", "NumPy"} <= set(found)
    for action in found.values():
        torch.testing.assert_close(torch.as_tensor(action()), expected)


def test_a_product_is_counted_as_two_flops_a_term() -> None:
    assert dense_flops(10) == 2000


def test_a_stack_is_measured_whole_and_in_its_parts() -> None:
    row: Any = measured(_small_stack(), SMALLEST)
    names = [one["operation"] for one in row["operations"]]
    smoothing = ["L2 pooling", "contrast normalisation"]
    both = [name + way for name in smoothing for way in ("", ", backward")]
    assert names == [*PRODUCTS, "stack_step", "filter norms", *both]
    assert {one["unit"] for one in row["operations"]} == {"GFLOP/s", "GB/s"}


def test_a_share_is_our_rate_over_that_of_the_fastest_dense_product() -> None:
    shape = replace(quick_shapes()[1], images=4)
    row: Any = measured(shape, Effort(rounds=1, dense_size=32))
    dense, product = row["dense"], row["operations"][0]
    assert dense["gflops"][dense["fastest"]]["median"] == max(
        rate["median"] for rate in dense["gflops"].values()
    )
    share = product["rate"][OURS]["median"] / dense["gflops"][dense["fastest"]]["median"]
    assert product["of_ceiling"][OURS]["median"] == pytest.approx(share, rel=1e-3)


def test_the_result_holds_machine_and_samples_and_becomes_a_picture(tmp_path: Path) -> None:
    shape = replace(quick_shapes()[1], images=4)
    ticks: list[tuple[int, int]] = []
    found: Any = kernels([shape], [1], SMALLEST, "cotswold bench kernels", lambda *tick: ticks.append(tick))
    again = json.loads(json.dumps(found))
    assert again["command"] == "cotswold bench kernels"
    assert again["machine"]["versions"]["torch"]
    assert ticks == [(1, 1)]
    samples = again["shapes"][0]["operations"][0]["seconds"]
    assert {OURS, UNFOLD} <= set(samples)
    assert all(len(taken) == SMALLEST.rounds and min(taken) > 0 for taken in samples.values())
    draw(found, tmp_path / "kernels.svg")
    drawing = (tmp_path / "kernels.svg").read_text()
    assert "unfold + einsum" in drawing and shape.name in drawing


def test_the_table_of_shapes_has_the_layers_that_are_promised() -> None:
    table = shapes()
    untied = [shape for shape in table if shape.group == "untied"]
    assert {shape.layer.y.size for shape in untied} == {3, 5, 7}
    assert all(shape.layer.neurons == shape.layer.depth for shape in untied)
    paper = next(shape for shape in table if shape.group == "paper")
    assert (paper.layer.y.size, paper.layer.y.step, paper.layer.neurons, paper.images) == (20, 4, 128, 96)

import pytest
import torch
from tests.support.bench.small_cases import small_layer

from cotswold.bench.kernels.explain import backend, described, explained
from cotswold.errors import CotswoldError, UserError
from cotswold.kernels import available
from cotswold.kernels.products.autotune import MIN_SPEEDUP
from cotswold.kernels.products.problem import processor_of


def test_a_shape_in_eight_integers_is_a_layer() -> None:
    shape = described("3,60,56,20,4,4,2,8", 96)
    assert (shape.images, shape.layer.grid, shape.layer.neurons) == (96, (11, 10), 64)
    assert shape.layer.input.channels == 3


@pytest.mark.parametrize("words", ["3,60", "3,60,60,20,4,4,4,x", "3,60,60,70,4,4,4,8"])
def test_what_is_no_layer_is_refused(words: str) -> None:
    with pytest.raises(CotswoldError):
        described(words, 96)


def test_torch_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(available.VARIABLE, "torch")
    assert (backend().name, backend().reason) == ("torch", f"{available.VARIABLE} says so")
    assert {one.kind for one in explained(small_layer())} == {"torch.bmm"}


def test_an_unknown_backend_is_the_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(available.VARIABLE, "gpu")
    with pytest.raises(UserError):
        backend()


@pytest.mark.skipif(available.backend() != "llvm", reason="no kernels of our own here")
def test_a_small_shape_has_a_tile_without_a_measurement() -> None:
    torch.set_num_threads(1)
    found = explained(small_layer())
    assert [one.product for one in found] == ["Wx", "W'x", "δx'"]
    assert all(one.tile and one.reason == "too little work to measure" for one in found)


@pytest.mark.skipif(available.backend() != "llvm", reason="no kernels of our own here")
def test_a_large_shape_has_the_times_of_its_candidates() -> None:
    torch.set_num_threads(1)
    found = explained(described("16,20,20,5,1,1,1,32", 32))
    for one in found:
        assert one.reason in ("measured now", "measured before")
        # the default stays where another tile gains hardly anything
        assert one.milliseconds[one.tile] <= 1.001 * MIN_SPEEDUP * min(one.milliseconds.values())


@pytest.mark.skipif(available.backend() != "llvm", reason="no kernels of our own here")
def test_the_lanes_that_compute_nothing_are_told() -> None:
    lanes = processor_of().lanes("float32")
    for images, neurons in ((100, 4), (96, 16), (1, 32)):
        found = explained(described(f"2,8,8,3,1,1,1,{neurons}", images))
        small = found[0].kind == "product_small_batch"
        for one, count in zip(found, (neurons if small else images, images, neurons), strict=True):
            assert one.lanes_filled == pytest.approx(count / (lanes * -(-count // lanes)), rel=1e-3)
    assert small, "no case with neurons in the lanes"

"""Dropout with a hashed mask: its statistics, its bits, and what torch computes instead."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

import pytest
import torch
from tests.support.kernels.processors import narrower
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.nn import functional as F

from cotswold import ops
from cotswold.errors import UserError
from cotswold.kernels import available
from cotswold.kernels.dropout_mask import Mask
from cotswold.kernels.maps import dropout as dropout_kernel
from cotswold.mesh import partition
from cotswold.nn import Dropout, convert_layers
from cotswold.ops.layers import dropout as dropout_operation
from cotswold.ops.layers.dropout import takes_hashed_dropout
from cotswold.ops.pooling import workers
from cotswold.training.full_batch.objective_checks import check_steady

SHAPES = [(64, 10, 14, 14), (33, 7, 9, 11), (64, 401), (5003,), (3, 4, 5, 6, 17)]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "images first": lambda x: x,
    "images last": ops.images_last,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "exchanged": lambda x: x.transpose(0, 1),
    "a part": lambda x: x[::2],
    "rows first": lambda x: x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
    "expanded": lambda x: x[:1].expand(x.shape),
}
KEYS = [0, 1, -1, 0x123456789ABCDEF, -(1 << 63)]


def _mask(key: int, p: float, *shape: int) -> Tensor:
    """Return 1 for kept elements, as float64."""
    return (Mask.of(key, p).apply(torch.ones(shape, dtype=torch.float64)) != 0).double()


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return the correlation of two masks, in standard deviations from 0."""
    a, b = a.flatten() - a.mean(), b.flatten() - b.mean()
    found: Tensor = (a @ b / (a.norm() * b.norm())).abs() * a.numel() ** 0.5
    return found


@pytest.mark.parametrize("p", [0.003, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("size", [4096, 100_003, 1 << 20])
def test_the_fraction_of_kept_elements_is_1_minus_p(p: float, size: int) -> None:
    for key in KEYS:
        kept = float(_mask(key, p, size).sum())
        assert abs(kept - (1 - p) * size) < 5 * (p * (1 - p) * size) ** 0.5


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_neighbours_images_and_calls_are_uncorrelated(p: float) -> None:
    for key in KEYS:
        mask = _mask(key, p, 64, 10, 14, 14)
        for axis in range(4):
            for lag in (1, 2, 3, 7):
                near, far = (mask.narrow(axis, start, mask.shape[axis] - lag) for start in (0, lag))
                assert _correlation(near, far) < 5, (key, axis, lag)
        for other in (key + 1, key ^ (1 << 32), key ^ (1 << 62), ~key):
            assert _correlation(mask, _mask(other, p, 64, 10, 14, 14)) < 5, (key, other)


def test_patterns_of_8_neighbours_are_uniform() -> None:
    """256 patterns; chi-square has 255 degrees of freedom, deviation 22.6."""
    for key in KEYS:
        bits = _mask(key, 0.5, 1 << 17, 8) @ 2.0 ** torch.arange(8, dtype=torch.float64)
        counts = torch.bincount(bits.long(), minlength=256)
        expected = len(bits) / 256
        assert abs(float(((counts - expected) ** 2 / expected).sum()) - 255) < 5 * 22.6


def test_successive_calls_drop_other_elements() -> None:
    torch.manual_seed(0)
    x, layer = torch.ones(64, 400), Dropout(0.5)
    masks = [(layer(x) != 0).double() for _ in range(8)]
    assert max(float(_correlation(a, b)) for a in masks for b in masks if a is not b) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layouts_threads_vectors_and_numpy_give_the_same_bits(dtype: torch.dtype) -> None:
    numbers = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        x = torch.randn(shape, dtype=dtype, generator=numbers)
        x.view(-1)[:3] = torch.tensor([float("nan"), float("inf"), -0.0])
        for name, lay in LAYOUTS.items() if x.dim() == 4 else [("contiguous", LAYOUTS["images first"])]:
            each = lay(x)
            mask = Mask.of(KEYS[3], 0.3)
            expected = mask.apply(each)
            whole = mask.apply(each.contiguous())
            assert torch.equal(expected.nan_to_num(7), whole.nan_to_num(7)), name
            for processor in (workers(each).processor, narrower() or workers(each).processor):
                for threads in (1, 2, 3):
                    team = dataclasses.replace(workers(each), processor=processor, threads=threads)
                    found = dropout_kernel.drop(each, mask, team)
                    assert found.contiguous().numpy().tobytes() == whole.numpy().tobytes(), (name, shape)
                    dense = dropout_kernel.dense_rows(each.shape, each.stride())
                    assert dense is None or found.stride() == each.stride(), name


def test_a_layer_computes_the_same_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for backend in ("llvm", "torch"):
        monkeypatch.setenv(available.VARIABLE, backend)
        torch.manual_seed(3)
        x = ops.images_last(torch.randn(20, 8, 9, 9)).requires_grad_()
        out = Dropout(0.25)(x)
        (grad,) = torch.autograd.grad(out.square().sum(), x)
        assert out.stride() == x.stride()
        found.append((out, grad, torch.rand(3)))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_backward_has_the_mask_of_forward(dtype: torch.dtype, layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(40, 5, 8, 9, dtype=dtype)).detach().requires_grad_()
    for _ in range(3):
        out = Dropout(0.3)(x)
        kept = torch.where(out == 0, 0, torch.tensor(1 / 0.7, dtype=dtype))
        torch.testing.assert_close(out, x * kept, rtol=0, atol=0)
        for grad in (torch.randn_like(out), ops.images_last(torch.randn_like(out)), torch.ones(())):
            (found,) = torch.autograd.grad(out, x, grad.expand(out.shape), retain_graph=True)
            assert torch.equal(found, kept * grad)


def test_derivatives_of_any_order_and_batches_of_gradients() -> None:
    x = torch.randn(64, 80, dtype=torch.float64).requires_grad_()
    out = Dropout(0.4)(x)
    kept = (out != 0).double() / 0.6
    (first,) = torch.autograd.grad((out**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach() * kept**3)
    grads = torch.randn(4, *x.shape, dtype=torch.float64)
    (found,) = torch.autograd.grad(out, x, grads, is_grads_batched=True)
    torch.testing.assert_close(found, grads * kept)


def test_no_mask_stays_in_memory() -> None:
    kept: list[Tensor] = []
    x = torch.randn(64, 400, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t), lambda t: t):
        Dropout(0.5)(x)
    assert not kept


def test_a_call_draws_one_key_from_the_default_generator() -> None:
    x = torch.randn(64, 400)
    torch.manual_seed(5)
    torch.empty((), dtype=torch.int64).random_(-(1 << 63), None)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    first = Dropout(0.5)(x)
    assert torch.equal(torch.get_rng_state(), after)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert torch.equal(Dropout(0.5)(x), first)
    assert torch.equal(torch.get_rng_state(), after)
    assert not torch.equal(Dropout(0.5)(x), first)


def test_activation_checkpointing_draws_the_mask_again() -> None:
    from torch.utils.checkpoint import checkpoint

    network = nn.Sequential(nn.Linear(40, 400), Dropout(0.5), nn.Linear(400, 3))
    x = torch.randn(64, 40, requires_grad=True)
    found = []
    runs: list[Callable[[Tensor], Tensor]] = [
        network,
        lambda x: checkpoint(network, x, use_reentrant=False),
    ]
    for run in runs:
        torch.manual_seed(1)
        found.append(torch.autograd.grad(run(x).square().sum(), x)[0])
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (Dropout(0.0), torch.ones(64, 400)),
        (Dropout(1.0), torch.ones(64, 400)),
        (Dropout(0.5).eval(), torch.ones(64, 400)),
        (Dropout(0.5, inplace=True), torch.ones(64, 400)),
        (Dropout(0.5), torch.ones(64, 400, dtype=torch.bfloat16)),
        (Dropout(0.5), torch.ones(63, 65)),
        (Dropout(0.5), torch.ones(64, 400, device="meta")),
    ],
    ids=["p 0", "p 1", "evaluation", "in place", "bfloat16", "small", "meta"],
)
def test_torch_computes_what_the_kernel_does_not(layer: Dropout, x: Tensor) -> None:
    theirs = nn.Dropout(layer.p, layer.inplace).train(layer.training)
    torch.manual_seed(0)
    found = layer(x.clone())
    torch.manual_seed(0)
    expected = theirs(x.clone())
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert found.is_meta or torch.equal(found, expected)


def test_torch_traces_compiles_scripts_and_maps_its_own() -> None:
    layer, x = nn.Sequential(Dropout(0.5)), torch.ones(64, 100)
    assert takes_hashed_dropout(x) and not takes_hashed_dropout(x.to_sparse())

    def same(found: Callable[[Tensor], Tensor]) -> None:
        torch.manual_seed(0)
        got = found(x)
        torch.manual_seed(0)
        assert torch.equal(got, F.dropout(x, 0.5))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated; a trace of a random function
        same(torch.jit.trace(layer, x, check_trace=False))  # type: ignore[no-untyped-call]  # untyped in torch
        same(torch.jit.script(layer))
    same(torch.fx.symbolic_trace(layer))
    same(torch.compile(layer, backend="aot_eager", fullgraph=True))
    same(torch.export.export(layer, (x,)).module())
    mapped = torch.func.vmap(layer, randomness="different")(x)
    assert set(mapped.unique().tolist()) == {0, 2}
    assert torch.func.jvp(layer, (x,), (x,))[1].shape == x.shape


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(8, 3000), Dropout(0.5)),
    ).double()


def _results(network: nn.Module, whole: Callable[[Tensor], Tensor]) -> Tensor:
    torch.manual_seed(1)
    out = network(torch.ones(2, 1, 40, 40, dtype=torch.float64))
    out.square().sum().backward()
    grads = [whole(each.grad) for each in network.parameters() if each.grad is not None]
    return torch.cat([whole(out.detach()).flatten(), *(each.flatten() for each in grads)])


def _on_a_mesh() -> Tensor:
    network = partition(_network(), "1x2")
    return _results(network, lambda each: each.full_tensor() if hasattr(each, "full_tensor") else each)


def test_ranks_of_a_mesh_drop_the_elements_of_one_process() -> None:
    expected = _results(_network(), lambda each: each)
    for found in on_ranks(2, _on_a_mesh):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_strategy_batch_refuses_it() -> None:
    with pytest.raises(UserError, match="drops random outputs"):
        check_steady(nn.Sequential(Dropout(0.5)))


def test_conversion_changes_only_torchs_own_class() -> None:
    class Own(nn.Dropout):
        pass

    network = nn.Sequential(nn.Dropout(0.3), nn.Dropout2d(0.3), Own(0.3))
    before = repr(network)
    assert convert_layers(network) is network
    assert [type(each) for each in network] == [Dropout, nn.Dropout2d, Own]
    assert repr(network) == before and not network.state_dict()


def test_a_kernel_that_fails_its_self_test_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> int:
        raise available.WrongKernelError("the kernel dropout computes wrongly")

    monkeypatch.setattr(available, "_failures", [])
    torch.manual_seed(0)
    x = torch.randn(64, 400)
    mask = Mask.of(7, 0.5)
    expected = dropout_operation._dropped(x, mask)
    monkeypatch.setattr(dropout_kernel, "kernel", fails)
    with pytest.warns(RuntimeWarning, match="computes wrongly"):
        assert torch.equal(dropout_operation._dropped(x, mask), expected)

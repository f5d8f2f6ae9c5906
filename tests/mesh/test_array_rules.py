"""Functions to other dimensions than those of maps return the results and gradients of whole tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.nn import functional as F

from cotswold.geometry import Grid, Partition
from cotswold.mesh import DistributedArray, DistributedMap, Mesh

SHAPE = (2, 4, 8, 6)
CUTS = {
    "2x2": ((0, 2, 8), (0, 4, 6)),
    "1x3": ((0, 8), (0, 1, 4, 6)),
    "3x2": ((0, 3, 3, 8), (0, 3, 6)),  # a row of ranks has nothing
}


def _whole(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape or SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _last(x: Any) -> Any:
    return x.permute(0, 2, 3, 1)


def _tokens(x: Any) -> Any:
    return x.flatten(2).transpose(1, 2)


def _classed(x: Any) -> Any:
    return torch.cat([_whole(1, 1, 1, 4).expand(2, -1, -1), _tokens(x)], 1)


def _windows(x: Any) -> Any:
    parts = _last(x).reshape(2, 4, 2, 3, 2, 4)
    return parts.permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 4)


def _unwindowed(windows: Any) -> Any:
    parts = windows.view(-1, 4, 3, 2, 2, windows.shape[-1])
    return parts.permute(0, 5, 1, 3, 2, 4).reshape(-1, windows.shape[-1], 8, 6)


def _attended(x: Any, **settings: Any) -> Any:
    heads = x.reshape(x.shape[0], x.shape[1], 2, 2).permute(0, 2, 1, 3)
    return F.scaled_dot_product_attention(heads, heads * 2, heads.tanh(), **settings)


def _written_attention(x: Any) -> Any:
    scores = (x @ x.transpose(-2, -1)).softmax(-1)
    return scores @ x.sin()


def _in_place(x: Any) -> Any:
    y = _last(x * 1)
    y += 1
    y *= _last(x)
    return y


def _assigned(x: Any) -> Any:
    y = _last(x * 1)
    y[..., :2] = 0.5 * y[..., 2:]
    y[:, :, :, -1] = 1
    y[..., 2].mul_(2)
    return y


def _of_layer(x: Any, keys: Any = None, batch_first: bool = True, **settings: Any) -> Any:
    """Return outputs and weights of torch's layer, joined."""
    torch.manual_seed(3)
    layer = nn.MultiheadAttention(4, 2, batch_first=batch_first, add_bias_kv=True).double()
    keys = x if keys is None else keys
    out, weights = layer(x, keys, keys, **settings)
    if batch_first:
        out = out.transpose(0, 1)
    return out + weights.mean((0, -1))[..., None, None] if weights.dim() == 3 else out * weights.mean()


def _sorted(x: Any) -> Any:
    return x.sort(3)[0] + _last(x).topk(4, 1)[0].mean()


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "permute": _last,
    "permute and back": lambda x: _last(x).cos().permute(0, 3, 1, 2) + x,
    "transposes": lambda x: x.transpose(1, 3).swapaxes(-1, 0).movedim(0, 2) * 2,
    "rows and columns exchanged": lambda x: x.transpose(2, 3).sin() + x.mT,
    "in place on a view": _in_place,
    "broadcast": lambda x: _last(x) * _whole(1, 4) + _whole(2, 8, 6, 1) - _whole(3, 2, 1, 1, 4) * x.sum(),
    "maps and views": lambda x: _last(x).permute(0, 3, 1, 2) * x + x * x.permute(0, 1, 2, 3),
    "one channel": lambda x: x[:, 0] + x[:, -1] * x.select(1, 2),
    "an image": lambda x: x[0].exp() + x[1, None, :2].sum(1),
    "channels by number": lambda x: x[:, [2, 0, -1]] * x[:, torch.tensor([1, 1, 0])],
    "rows by number": lambda x: x[:, :, [1, 2]].sum(2) * x[:, :, torch.tensor([-1, 0])][:, 0].amax(),
    "unbind and stack": lambda x: torch.stack(x.unbind(1)[::-1], 1) + torch.stack(x.unbind(0)),
    "stack of chunks": lambda x: torch.stack(x.chunk(2, 1)).amax(0).repeat(1, 2, 1, 1),
    "mean of channels": lambda x: x.mean(1) * x.sum(1) - x.mean(dim=1, keepdim=True)[:, 0],
    "NumPy's names": lambda x: x.mean(axis=1, keepdims=True) * _last(x).sum(axis=-1)[:, None],
    "variance": lambda x: x.var(1, unbiased=False) + x.std(1, True) + x.var((1, 2, 3), keepdim=True)[:, 0],
    "variances and means": lambda x: torch.mul(*torch.var_mean(x, 1, keepdim=True, unbiased=False)),
    "largest channels": lambda x: x.amax(1) + x.max(1)[0] * x.min(dim=1).values,
    "classes": lambda x: ((x.argmax(1) == 1) * x[:, 0])[:, None] + x * (x.argmax(1, keepdim=True) > 1),
    "norms": lambda x: x / x.norm(p=2, dim=1, keepdim=True) + torch.linalg.vector_norm(x, dim=1)[:, None],
    "norms over space": lambda x: (
        x * (x.norm(p=2, dim=(2, 3), keepdim=True) + torch.linalg.vector_norm(x, 3, (1, 2, 3), keepdim=True))
    ),
    "norms of zeros": lambda x: (x * 0).norm(dim=(2, 3)) + x.norm(1) + x.norm(float("inf")) + x.norm(p=0),
    "global response": lambda x: (lambda g: x * (g / g.mean(-1, keepdim=True)).permute(0, 3, 1, 2))(
        _last(x).norm(p=2, dim=(1, 2), keepdim=True)
    ),
    "layer norm": lambda x: F.layer_norm(_last(x), (4,), _whole(1, 4), _whole(2, 4)),
    "layer norm of maps": lambda x: F.layer_norm(x, SHAPE[1:], _whole(1, *SHAPE[1:]), _whole(2, *SHAPE[1:])),
    "layer norm of planes": lambda x: F.layer_norm(x, SHAPE[2:]) + F.layer_norm(x, SHAPE[3:]),
    "root mean square norm": lambda x: (
        F.rms_norm(_last(x), (4,), _whole(1, 4))
        + F.rms_norm(x, SHAPE[1:], _whole(1, *SHAPE[1:]), 1e-3).permute(0, 2, 3, 1)
    ),
    "linear": lambda x: F.linear(_last(x), _whole(1, 5, 4), _whole(2, 5)).permute(0, 3, 1, 2),
    "linear of columns": lambda x: F.linear(x, _whole(1, 5, 6)),
    "softmax": lambda x: _last(x).softmax(-1) + F.log_softmax(_last(x), -1) + F.normalize(_last(x), dim=-1),
    "softmax of space": lambda x: x.flatten(2).softmax(-1).view(x.shape) * x,
    "gates": lambda x: F.glu(_last(x)) + _last(x).cumsum(-1)[..., :2],
    "roll": lambda x: torch.roll(x, (3, -2), (2, 3)) * x + x.roll(1, 1),
    "roll of a view": lambda x: torch.roll(_last(x), shifts=(-1, -1), dims=(1, 2)),
    "flip": lambda x: x.flip(3) * x.flip((1, 2)) + torch.flip(_last(x), [1, 2]).permute(0, 3, 1, 2),
    "padding of a view": lambda x: F.pad(_last(x), (0, 0, 1, 2, 0, 3)),
    "a view's rows and columns": lambda x: _last(x)[:, 1::2, ::2],
    "windows": _windows,
    "windows and back": lambda x: _unwindowed(_windows(x).tanh()) + x,
    "windows of odd cuts": lambda x: x.view(2, 4, 2, 4, 2, 3).amax((3, 5)),
    "windows of the plane": lambda x: x.unflatten(2, (4, -1)).mean(3) * 2,
    "attention of windows": lambda x: _attended(_windows(x)),
    "attention of windows with biases": lambda x: (
        lambda w: (w @ w.mT).view(2, 12, 4, 4) + _whole(1, 12, 4, 4)
    )(_windows(x)).softmax(-1),
    "tokens": lambda x: _tokens(x) + _whole(1, 1, 48, 4),
    "tokens and back": lambda x: (_tokens(x) * 2).transpose(1, 2).reshape(x.shape) * x,
    "class tokens": lambda x: _classed(x) * _whole(2, 1, 49, 4),
    "class token": lambda x: _classed(x).sin()[:, 0],
    "tokens without that of classes": lambda x: _classed(x).sin()[:, 1:].mean(1) + _classed(x).mean(1),
    "pixels behind class tokens": lambda x: _classed(x)[:, 1:].transpose(1, 2).unflatten(2, (8, 6)) * x,
    "tokens on both sides": lambda x: torch.cat([_classed(x), _whole(3, 2, 3, 4)], 1)[:, 46:],
    "split of tokens": lambda x: torch.cat(_classed(x).split([1, 48], 1)[::-1], 1),
    "attention of tokens": lambda x: _attended(_classed(x)),
    "attention of tokens with biases": lambda x: _attended(_classed(x), attn_mask=_whole(2, 49, 49)),
    "causal attention": lambda x: _attended(_classed(x), is_causal=True),
    "attention with dropout": lambda x: _attended(_classed(x), dropout_p=0.3),
    "torch's attention": lambda x: _of_layer(_classed(x)),
    "torch's attention without weights": lambda x: _of_layer(
        _classed(x), need_weights=True, average_attn_weights=False
    ),
    "torch's attention with masks": lambda x: _of_layer(
        _classed(x),
        attn_mask=torch.ones(49, 49).triu(2).bool(),
        key_padding_mask=torch.arange(49) > torch.tensor([[48], [30]]),
    ),
    "torch's attention of windows": lambda x: _of_layer(_windows(x).transpose(0, 1), batch_first=False),
    "torch's attention across": lambda x: _of_layer(_classed(x), _whole(2, 2, 5, 4)),
    "torch's attention of replicated queries": lambda x: _of_layer(_whole(2, 2, 5, 4), _classed(x)),
    "written attention": lambda x: _written_attention(_classed(x)),
    "written attention of windows": lambda x: _written_attention(_windows(x)),
    "einsum over channels": lambda x: torch.einsum("bchw,cd->bdhw", x, _whole(1, 4, 3)),
    "einsum of maps": lambda x: torch.einsum("bchw,bdhw->bhwcd", x, x.cos()) * 2,
    "einsum over space": lambda x: torch.einsum("b...c,b...d->bcd", _last(x), _last(x.cos())),
    "Gram matrix": lambda x: torch.bmm(x.flatten(2), x.flatten(2).transpose(1, 2)),
    "matrix": lambda x: (_tokens(x) @ _whole(1, 4, 4)).transpose(1, 2).view(x.shape),
    "matrix from the left": lambda x: _whole(1, 3, 4) @ x.flatten(2),
    "new tensors": lambda x: torch.cat([x, x.new_zeros(x.shape), x.new_ones(x.shape)], 1)[:, 2:10],
    "new numbers": lambda x: x * x.new_empty((2, 1, 1, 1)).bernoulli_(0.5) * x.new_full((), 2),
    "random numbers": lambda x: x + torch.rand_like(x) + torch.randn_like(x),
    "random numbers of tokens": lambda x: _tokens(x).contiguous() * torch.rand_like(_tokens(x).contiguous()),
    "dropout of tokens": lambda x: F.dropout(F.linear(_classed(x), _whole(1, 4, 4)), 0.4),
    "dropout of windows whose cuts moved": lambda x: F.dropout(x.view(2, 4, 2, 4, 2, 3), 0.4),
    "dropout of what moved": lambda x: F.dropout(x.roll(2, 3), 0.4) * F.dropout(x.flip(3), 0.2),
    "attributes": lambda x: x + x.data if isinstance(x, Tensor) or x.is_contiguous() else x,
    "attributes of a view": lambda x: _last(x).data * _last(x) if torch.is_tensor(_last(x)) else x,
    "numbers of a view": lambda x: _last(x) / (_last(x).size(3) + len(_last(x)) + _last(x).numel()),
    "assignments": _assigned,
    "functions without a rule": _sorted,
    "losses of views": lambda x: (
        F.mse_loss(x[:, 0], x[:, 1]) + F.cross_entropy(_tokens(x).flatten(0, 1), _whole(1, 96).gt(0).long())
    ),
    "columns of an array": lambda x: x[:, 0, 1:3, 2] + x.mean(1)[:, 0, -1].sum(),
    "sequences": lambda x: F.conv1d(x.flatten(2), _whole(1, 4, 4, 3)),
    "types": lambda x: (x[:, 0] > 0).long() * x[:, 0] + x[:, 0].float().double() * (x[:, 1] > 0).bool(),
}


def _applied(function: Callable[[Any], Any], x: Any, leaf: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(11)
    out = function(x)
    weighted = out * torch.linspace(1, 2, out.shape.numel(), dtype=torch.float64).view(out.shape)
    (grad,) = torch.autograd.grad(weighted.sum(), leaf)
    whole = out.full_tensor() if isinstance(out, DistributedMap | DistributedArray) else out
    return whole.detach(), grad


def _differences(grid: str, names: list[str]) -> dict[str, float]:
    mesh, partition, found = Mesh.of(grid), Partition(*CUTS[grid]), {}
    for name in names:
        alone, ours = _whole(0).requires_grad_(), _whole(0).requires_grad_()
        rows, columns = partition.box(mesh.rank).slices
        x = DistributedMap(ours[:, :, rows, columns], partition, mesh)
        wanted = _applied(FUNCTIONS[name], alone, alone)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = _applied(FUNCTIONS[name], x, ours)
        own = torch.zeros_like(ours)
        own[:, :, rows, columns] = 1  # a rank's part has gradients of that part
        pairs = ((got[0], wanted[0]), (got[1] * own, wanted[1] * own))
        apart = [(a - b).abs().max() / b.abs().max().clamp_min(1e-30) for a, b in pairs]
        found[name] = torch.stack(apart).max().item()  # which a NaN is
    return found


@cache
def differences(grid: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = on_ranks(Grid.parse(grid).size, _differences, grid, [*FUNCTIONS])
    return found


@pytest.mark.parametrize("grid", CUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_to_other_dimensions_is_that_of_the_whole(name: str, grid: str) -> None:
    assert all(found[name] < 1e-12 for found in differences(grid))

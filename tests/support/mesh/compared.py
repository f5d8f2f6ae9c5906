"""Functions of distributed maps compared with those of whole tensors, and modules trained on ranks and alone.

Knows: outputs, gradients, updated parameters. Does not know: the functions and the modules.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cotswold.geometry import Partition
from cotswold.mesh import DistributedMap, Mesh, partition


def tensor(seed: int, *shape: int) -> Tensor:
    """Return a tensor that is equal on every rank, in float64."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _whole(out: Any) -> Any:
    return out.full_tensor() if hasattr(out, "full_tensor") else out


def apart(got: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, relative to the largest value; gradients of 0 are rounding alone."""
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    if got.is_complex():
        got, wanted = torch.view_as_real(got), torch.view_as_real(wanted)
    return ((got - wanted).abs().max() / wanted.abs().max().clamp_min(1e-5)).item()


def _applied(function: Callable[[Any], Any], x: Any, leaf: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(11)
    out = function(x)
    weights = torch.linspace(1, 2, out.shape.numel(), dtype=torch.float64).view(out.shape)
    (grad,) = torch.autograd.grad((out * weights).sum().abs(), leaf)
    return _whole(out).detach(), grad


def function_differences(
    functions: Mapping[str, Callable[[Any], Any]], whole: Tensor, cuts: Partition
) -> dict[str, float]:
    """Return the differences of outputs and gradients between a map with these cuts and the whole."""
    mesh = Mesh.of(cuts.grid)
    found = {}
    rows, columns = cuts.box(mesh.rank).slices
    own = torch.zeros_like(whole)
    own[:, :, rows, columns] = 1  # a rank's part has gradients of that part
    for name, function in functions.items():
        alone, ours = whole.clone().requires_grad_(), whole.clone().requires_grad_()
        wanted = _applied(function, alone, alone)
        x = DistributedMap(ours[:, :, rows, columns], cuts, mesh)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = _applied(function, x, ours)
        found[name] = max(apart(got[0], wanted[0]), apart(got[1] * own, wanted[1] * own))
    return found


def _trained(module: nn.Module, x: Tensor, updates: int) -> list[Tensor]:
    """Return outputs, gradients and parameters of some updates, whole, in training and evaluation."""
    torch.manual_seed(5)
    found: list[Any] = []
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for _ in range(updates):
        x = x.detach().clone().requires_grad_()
        optimiser.zero_grad()
        out = module(x)
        (out**2).mean().backward()
        found += [out, x.grad, *(values.grad for values in module.parameters())]
        optimiser.step()
    found += [*module.parameters(), *module.buffers()]
    with torch.no_grad():
        found.append(module.eval()(x))
    return [_whole(one).detach() for one in found if one is not None]


def module_differences(
    modules: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]], grid: str, updates: int = 3
) -> dict[str, float]:
    """Return the largest difference of three updates of each module on a grid and in one process."""
    found = {}
    for name, (make, shape) in modules.items():
        torch.manual_seed(0)
        module = make().double()
        x = tensor(3, *shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = _trained(partition(module, grid), x, updates)
            wanted = _trained(module, x, updates)
        found[name] = max(apart(*pair) for pair in zip(got, wanted, strict=True))
    return found

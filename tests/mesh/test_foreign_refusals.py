"""A foreign module that cannot be partitioned raises an error that names the cause, on all ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.mesh.foreign_modules import SHAPE, Between, conv
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cotswold.errors import UserError
from cotswold.mesh import partition
from cotswold.mesh.modules.parameters import ShardedParameter
from cotswold.nn import LocallyConnected2d


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.expand(ctx.shape)


def _hooked(partitioned: Any) -> Any:
    partitioned.part[0].register_full_backward_hook(lambda *_: None)
    return partitioned


def _compiled(partitioned: Any) -> Any:
    partitioned.part[0].compile()
    return partitioned


def _local() -> nn.Module:
    return LocallyConnected2d(4, 4, (8, 9), 3, padding=1)


def _optimised(kind: str) -> Callable[[], Any]:
    def step() -> None:
        partitioned = partition(conv(), "1x2")
        partitioned(torch.rand(SHAPE)).square().mean().backward()
        getattr(torch.optim, kind)(partitioned.parameters()).step()

    return step


def _called(module: nn.Module, change: Callable[[Any], Any] = lambda same: same) -> Callable[[], Any]:
    def call() -> None:
        change(partition(module, "1x2"))(torch.rand(SHAPE)).square().mean().backward()

    return call


def _outside(module: nn.Module, of_map: bool = False) -> Callable[[], Any]:
    def call() -> None:
        part = partition(nn.Sequential(nn.Identity(), module), "1x2")[1]
        x = partition(nn.Identity(), "1x2")(torch.rand(SHAPE)) if of_map else torch.rand(SHAPE)
        part(x.flatten(1) if isinstance(module, nn.Linear) else x)

    return call


def _checkpointed_from_outside() -> None:
    x = torch.rand(SHAPE, requires_grad=True)
    checkpoint(partition(conv(), "1x2"), x, use_reentrant=True).square().mean().backward()


def _swish(x: Tensor) -> Tensor:
    return x * x.sigmoid()


def _with_parameter() -> Callable[[], Any]:
    def call() -> None:
        partitioned = partition(nn.Sequential(nn.Identity(), conv()), "1x2")
        F.conv2d(partition(nn.Identity(), "1x2")(torch.rand(SHAPE)), partitioned[1].weight)

    return call


REFUSED: dict[str, tuple[Callable[[], Callable[[], Any]], str]] = {
    "a convolution outside": (lambda: _outside(conv()), "Conv2d '1' is a part of a partitioned module"),
    "a convolution outside, of a map": (lambda: _outside(conv(), True), "Conv2d '1' is a part"),
    "a local layer outside": (lambda: _outside(_local()), "PartitionedLocal2d '1' is a part"),
    "a local layer outside, of a map": (lambda: _outside(_local(), True), "PartitionedLocal2d '1'"),
    "a norm outside": (lambda: _outside(nn.BatchNorm2d(4)), "BatchNorm2d '1' is a part"),
    "a matrix outside": (lambda: _outside(nn.Linear(288, 3)), "SplitLinear '1' is a part"),
    "a reentrant checkpoint around the module": (
        lambda: _checkpointed_from_outside,
        "a reentrant torch.utils.checkpoint around a partitioned module",
    ),
    "a function of one's own": (
        lambda: _called(Between(lambda _, x: _Twice.apply(x))),  # type: ignore[no-untyped-call]  # torch's
        "autograd.Function received a distributed tensor",
    ),
    "a sum of one's own": (
        lambda: _called(Between(lambda _, x: x * _Total.apply(x))),  # type: ignore[no-untyped-call]  # torch's
        "autograd.Function received a distributed tensor",
    ),
    "a backward hook": (
        lambda: _called(Between(lambda part, x: part(x), conv()), _hooked),
        "Conv2d 'part.0' has a backward hook",
    ),
    "a compiled part": (
        lambda: _called(Between(lambda part, x: part(x), conv()), _compiled),
        "Conv2d 'part.0' is compiled",
    ),
    "a convolution of sequences on a map": (
        lambda: _called(Between(lambda part, x: part(x), nn.Conv1d(4, 4, 1))),
        "conv1d cannot be computed on a distributed map",
    ),
    "a map as an index": (
        lambda: _called(Between(lambda _, x: x[x > 0])),
        "a distributed map cannot be an index",
    ),
    "a slice of nothing": (
        lambda: _called(Between(lambda _, x: x[:, :, 5:5])),
        "the slice 5:5 leaves nothing",
    ),
    "too much padding": (
        lambda: _called(Between(lambda _, x: F.pad(x, (9, 0, 0, 0), mode="reflect"))),
        "padding by 9 and 0 in mode 'reflect' does not fit 9 pixels; use at most 8",
    ),
    "the truth of a map": (lambda: _called(Between(lambda _, x: x if x else -x)), "bool cannot"),
    "a function in TorchScript": (
        lambda: _called(Between(lambda _, x: torch.jit.script(_swish)(x))),
        "torch.jit.script received a distributed tensor.*x.sigmoid",
    ),
    "a map with a parameter outside": (_with_parameter, "conv2d received a distributed map and a DTensor"),
    "Rprop": (lambda: _optimised("Rprop"), "torch.optim.Rprop cannot"),
    "Adafactor": (lambda: _optimised("Adafactor"), "torch.optim.Adafactor cannot"),
}


def _words() -> dict[str, str]:
    found = {}
    for name, (make, _) in REFUSED.items():
        torch.manual_seed(0)
        try:
            make()()
        except UserError as refused:
            found[name] = str(refused)
    return found


@cache
def words() -> list[dict[str, str]]:
    return on_ranks(2, _words)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_on_ranks_is_refused_by_name_on_all_of_them(name: str) -> None:
    for found in words():
        assert re.search(REFUSED[name][1], found.get(name, ""), re.DOTALL), found.get(name)


def test_the_part_of_a_parameter_says_where_the_whole_is_to_be_had() -> None:
    part = ShardedParameter(torch.ones(2, 3), torch.Size((4, 3)))
    with pytest.raises(UserError, match="outside of the forward"):
        part.full_tensor()

"""Sums and gathers of a grid: how many a pass needs, for which of them it waits, and their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.compared import tensor
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn

from cotswold.mesh import partition

LAYERS = 4


class Messages:
    """Counts the sums and gathers that begin while it is installed.

    Attributes:
        waiting: The numbers of values of those for which the caller waits.
        begun: The numbers of values of the others.
    """

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.begun: list[int] = []
        self._torch = {name: getattr(dist, name) for name in ("all_reduce", "all_gather")}

    def __enter__(self) -> Messages:
        for name, function in self._torch.items():
            setattr(dist, name, self._counted(function, -1 if name == "all_gather" else 0))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self._torch.items():
            setattr(dist, name, function)

    def _counted(self, function: Callable[..., Any], at: int) -> Callable[..., Any]:
        def call(*given: Any, **words: Any) -> Any:
            values = given[1] if at else given[0]
            (self.begun if words.get("async_op") else self.waiting).append(values.numel())
            return function(*given, **words)

        return call


def _chain(norm: Callable[[], nn.Module], width: int = 4) -> nn.Module:
    torch.manual_seed(0)
    layers = ((nn.Conv2d(width, width, 3, padding=1), norm(), nn.Tanh()) for _ in range(LAYERS))
    return nn.Sequential(*(each for layer in layers for each in layer)).double()


NORMS: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {
    "none": (nn.Identity, 0, 0, 0),
    "batch norm": (lambda: nn.BatchNorm2d(4), 12, 8, 0),
    "group norm": (lambda: nn.GroupNorm(2, 4), 18, 12, 8),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), 36, 24, 8),
}
"""Norms, values of each rank's message forward and backward, and values of weights that are summed later."""
CONVOLUTION = 4 * 4 * 9 + 4


def _messages() -> dict[str, tuple[list[int], list[int], list[int], float]]:
    """Return the messages forward and backward, and the largest difference of a gradient."""
    found = {}
    for name, (norm, *_) in NORMS.items():
        whole = _chain(norm)
        model = partition(_chain(norm), "1x2")
        x = tensor(1, 3, 4, 6, 8)
        model(x)  # the first calls compare arguments
        with Messages() as forward:
            out = model(x).square().sum()
        with Messages() as backward:
            out.backward()
        whole(x)
        whole(x).square().sum().backward()
        grads = [
            (own.grad.full_tensor() - each.grad).abs().max().item()
            for own, each in zip(model.parameters(), whole.parameters(), strict=True)
            if each.grad is not None
        ]
        found[name] = forward.waiting, backward.waiting, backward.begun, max(grads)
    return found


@cache
def messages() -> list[dict[str, tuple[list[int], list[int], list[int], float]]]:
    found: list[Any] = on_ranks(2, _messages)
    return found


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_needs_one_message_in_each_pass_and_no_layer_waits_for_sums_of_weights(name: str) -> None:
    _, of_forward, of_backward, of_weights = NORMS[name]
    for found in messages():
        forward, waiting, begun, apart = found[name]
        plain = found["none"][0]
        assert len(forward) == len(plain) + (LAYERS if of_forward else 0)
        assert [one for one in forward if one == of_forward] == [of_forward] * (LAYERS if of_forward else 0)
        assert waiting == [of_backward] * (LAYERS if of_backward else 0)
        assert begun == [LAYERS * (CONVOLUTION + of_weights)]
        assert apart < 1e-10


def _large() -> tuple[list[str], list[int], bool]:
    """Return the order of events of a backward pass, the sums, and whether a second pass has its bits."""
    model = partition(_chain(nn.Identity, 80), "1x2")
    x = tensor(1, 1, 80, 4, 6).requires_grad_()
    grads: list[list[Tensor]] = []
    for _ in range(2):
        events: list[str] = []
        model.zero_grad()
        out = model(x).square().sum()
        x.register_hook(lambda _, events=events: events.append("end"))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with Messages() as found:
            reduce = dist.all_reduce

            def begin(*given: Any, reduce: Any = reduce, events: Any = events, **words: Any) -> Any:
                if words.get("async_op"):
                    events.append("sum")
                return reduce(*given, **words)

            dist.all_reduce = begin
            out.backward()
        grads.append([one.grad.full_tensor() for one in model.parameters() if one.grad is not None])
    return events, found.begun, all(map(torch.equal, *grads))


def test_sums_of_large_weights_begin_during_the_backward_pass_and_repeat_their_bits() -> None:
    layer = 80 * 80 * 9 + 80
    for events, begun, is_equal in on_ranks(2, _large):
        assert events == ["sum", "end", "sum"]  # three layers exceed the first bucket
        assert begun == [3 * layer, layer]
        assert is_equal

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

from cotswold.geometry import Box, ExchangePlan, Grid
from cotswold.mesh import Mesh, partition
from cotswold.mesh.maps.exchange import Exchange
from cotswold.mesh.ranks import mesh as of_mesh
from cotswold.mesh.ranks.short_messages import RANKS_MAX, is_short
from cotswold.mesh.transport.connect import SOCKETS_SWITCH, SWITCH

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
        self._found: list[tuple[Any, str, Any]] = [
            (module, name, getattr(module, name))
            for module, name in ((dist, "all_reduce"), (dist, "all_gather"), (of_mesh, "gather_short"))
        ]

    def __enter__(self) -> Messages:
        for module, name, function in self._found:
            setattr(module, name, self._counted(function, int(name == "all_gather")))
        return self

    def __exit__(self, *_: object) -> None:
        for module, name, function in self._found:
            setattr(module, name, function)

    def _counted(self, function: Callable[..., Any], at: int) -> Callable[..., Any]:
        def call(*given: Any, **words: Any) -> Any:
            (self.begun if words.get("async_op") else self.waiting).append(given[at].numel())
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


EMPTY: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm2d(4).eval(),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "instance norm": lambda: nn.InstanceNorm2d(4),
}


def _without_images() -> list[tuple[list[int], list[float]]]:
    """Return the shape of each norm's output for an empty batch, and the sums of its gradients."""
    found = []
    for norm in EMPTY.values():
        model = partition(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm()), "1x2")
        out = model(torch.zeros(0, 3, 6, 8))
        out.sum().backward()
        sums = [one.grad.full_tensor().abs().sum().item() for one in model.parameters()]
        found.append((list(out.shape), sums))
    return found


def test_norms_of_an_empty_batch_have_an_empty_output_and_no_gradients() -> None:
    for found in on_ranks(2, _without_images):
        assert found == [([0, 4, 6, 8], [0.0] * count) for count in (4, 4, 2)]


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


SHAPES = ((), (1,), (3, 5), (0,), (4096,), (4097,))
"""Shapes of float32 on both sides of the largest short message."""


def _short(grid: str) -> list[tuple[bool, bool, bool]]:
    """Return whether tensors are short, whether sums and maxima are right, and whether gathers are."""
    mesh = Mesh.of(grid)
    found = []
    for shape in SHAPES:
        whole = tensor(2, mesh.size, *shape).float()
        own = whole[mesh.rank].clone()
        wanted = whole[0].clone()
        for each in whole[1:]:
            wanted += each
        is_summed = torch.allclose(mesh.sum_in_place(own), wanted, atol=1e-5)
        numbers = whole.view(torch.int32)
        is_summed &= torch.equal(mesh.largest_in_place(numbers[mesh.rank].clone()), numbers.amax(0))
        strided = torch.stack([whole[mesh.rank]] * 2, -1)[..., 0]
        found.append(
            (is_short(own, mesh.size), is_summed, torch.equal(torch.stack(mesh.gather(strided)), whole))
        )
    return found


@pytest.mark.parametrize("grid", ["1x2", "2x2"])
def test_short_and_long_tensors_are_summed_and_gathered(grid: str) -> None:
    for found in on_ranks(Grid.parse(grid).size, _short, grid):
        assert found == [(shape != (4097,), True, True) for shape in SHAPES]
    assert not is_short(torch.zeros(1), RANKS_MAX + 1)
    assert not is_short(torch.zeros(1, device="meta"), 2)


def _noted(calls: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **words: Any) -> Any:
        calls.append(name)
        return function(*given, **words)

    return call


def _by_group(apart: tuple[int, ...]) -> tuple[list[Tensor], int, int]:
    """Return a sum, a maximum and gathered tensors, and the numbers of calls of Gloo and of `gather_short`.

    The ranks ``apart`` have no connections but those of the group.
    """
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() in apart:
            for switch in (SWITCH, SOCKETS_SWITCH):
                patch.setenv(switch, "0")
        mesh = Mesh.of("1x3")
        mesh.sum_in_place(torch.zeros(1))  # the first call connects the ranks
        own = torch.tensor([mesh.rank, 2 - mesh.rank])
        calls: list[str] = []
        for module, name in ((dist, "all_reduce"), (dist, "all_gather"), (of_mesh, "gather_short")):
            patch.setattr(module, name, _noted(calls, name, getattr(module, name)))
        found = [mesh.sum_in_place(own.clone()), mesh.largest_in_place(own.clone()), *mesh.gather(own)]
    by_ranks = calls.count("gather_short")
    return found, len(calls) - by_ranks, by_ranks


@pytest.mark.parametrize("apart", [(), (1,), (0, 1, 2)])
def test_short_tensors_use_the_group_if_a_pair_of_ranks_has_no_other_connection(
    apart: tuple[int, ...],
) -> None:
    wanted = torch.tensor([[3, 3], [2, 2], [0, 2], [1, 1], [2, 0]])
    for found, by_group, by_ranks in on_ranks(3, _by_group, apart):
        assert torch.equal(torch.stack(found), wanted)
        assert (by_group, by_ranks) == ((3, 0) if apart else (0, 3))


def _during_exchange() -> tuple[float, float]:
    """Return a sum, and a sum of the halo of an exchange that was under way."""
    mesh = Mesh.of("1x2")
    halves = Box((0, 0), (2, 2)), Box((0, 2), (2, 4))
    exchange = Exchange(mesh, ExchangePlan(halves, (Box.whole((2, 4)),) * 2))
    under_way = exchange.start(torch.full((1, 1, 2, 2), 1.0 + mesh.rank))
    total = mesh.sum_in_place(torch.tensor([1.0 + mesh.rank]))
    return total.item(), under_way.finish().sum().item()


def test_short_sums_pass_an_exchange_that_is_under_way() -> None:
    assert on_ranks(2, _during_exchange) == [(3.0, 12.0)] * 2

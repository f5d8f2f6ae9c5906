"""In-place work on maps in parts is visible as in one process, or refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.nn import functional as F

from cotswold.errors import UserError
from cotswold.geometry import Box, Grid, Partition
from cotswold.mesh import DistributedMap, Mesh, SpatialLayer, local_map, partition
from cotswold.mesh.modules.parameters import local_parameters_installed

GRIDS = ("1x2", "2x1", "2x2")
SHAPE = (2, 4, 6, 8)
ALL = slice(None)


def _conv(x: Any) -> Any:
    return F.conv2d(x, torch.linspace(-1, 1, 72, dtype=torch.float64).view(2, 4, 3, 3), padding=1)


def _then(change: Callable[[Any], object], use: Callable[[Any], Any] = _conv) -> Callable[[Any], Any]:
    """Return a function that uses a map after an in-place change through a tensor derived from it."""

    def changed(x: Any) -> Any:
        change(x)
        return use(x)

    return changed


def _set(key: Any, value: Any) -> Callable[[Any], None]:
    def change(x: Any) -> None:
        x[key] = value(x) if callable(value) else value

    return change


def _whole(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _seen_through_a_view(x: Any) -> Any:
    part = x[:, 1:3]
    x.mul_(2)
    return part * 1


def _of_result(change: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return a function that uses a result after an in-place change of a view of it."""

    def changed(x: Any) -> Any:
        x = x * 1
        change(x)
        return _conv(x)

    return changed


def _rows_set(x: Any) -> Any:
    x[:, :, ::2, 1:-1] = 0
    x[:, 1:2, -1:] = _whole(3, 1, 1, 1, 8)
    return x


def _pixels_of_tokens(x: Any, change: Callable[[Any], object]) -> Any:
    tokens = torch.cat([_whole(5, 2, 1, 4), x.flatten(2).transpose(1, 2)], 1)
    change(tokens)
    return tokens[:, 1:].transpose(1, 2).view(2, 4, 6, 8)


def _kept_beside(x: Any) -> Any:
    kept = x
    F.relu(x, inplace=True)
    return _conv(x) + kept[:, :2]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "the map itself": _then(lambda x: x.sub_(0.5)),
    "an operator": _then(lambda x: x.__imul__(_whole(1, 6, 8))),
    "an activation": lambda x: _conv(F.relu(x, inplace=True)),
    "an activation, kept beside": _kept_beside,
    "a leaky activation": lambda x: _conv(F.leaky_relu(x, 0.2, inplace=True)),
    "a slice": _then(lambda x: x[:, :2].mul_(3)),
    "images": _then(lambda x: x[1:].add_(1)),
    "a slice of a slice": _then(lambda x: x[:, 1:][:, :2].mul_(3)),
    "a chunk": _then(lambda x: x.chunk(2, 1)[1].add_(1)),
    "a split": _then(lambda x: x.split([1, 3], 1)[0].sigmoid_()),
    "narrow": _then(lambda x: x.narrow(1, 1, 2).neg_()),
    "detached": _then(lambda x: x.detach().mul_(2)),
    "the same type": _then(lambda x: x.double().mul_(2)),
    "contiguous": _then(lambda x: x.contiguous().mul_(2)),
    "setting": _then(_set((ALL, slice(0, 2)), 0)),
    "setting a whole tensor": _then(_set((..., slice(1, 2), ALL, ALL), _whole(2, 2, 1, 6, 8))),
    "setting a map": _then(_set((ALL, slice(0, 2)), lambda x: x[:, 2:] * 2)),
    "a map beside": _then(lambda x: x.add_(x * x)),
    "a view beside": _then(lambda x: x[:, :2].add_(x[:, 2:])),
    "a map of other cuts beside": _then(lambda x: x.add_(F.pad(F.pad(x, (0, 0, -3, 0)), (0, 0, 3, 0)))),
    "rows, set to a number": lambda x: _conv(_rows_set(x * 1)),
    "a view that was made before": _seen_through_a_view,
    "dropout": lambda x: _conv(F.dropout(x, 0.4, inplace=True)),
    "dropout of channels": _then(lambda x: F.dropout2d(x, 0.4, inplace=True)),
    "no dropout": _then(lambda x: F.dropout(x, 0.4, training=False).mul_(2)),
    "another type": lambda x: x.float().mul_(2).double().flatten(1),
    "channels last": _of_result(lambda x: x.permute(0, 2, 3, 1).mul_(2)),
    "channels last, in between": _of_result(lambda x: x.permute(0, 2, 3, 1)[..., 1:].mT.neg_()),
    "channels last, set": _of_result(lambda x: _set((..., 0), 2)(x.permute(0, 2, 3, 1))),
    "pixels beside a token": lambda x: _pixels_of_tokens(x, lambda tokens: tokens[:, 1:].mul_(3)),
    "pixels beside a token, set": lambda x: _pixels_of_tokens(x, _set((ALL, slice(1, None)), 3)),
    "one channel": _of_result(lambda x: x[:, 1].add_(x[:, 0])),
    "one image, exchanged": _of_result(lambda x: x[0].transpose(0, 2).sigmoid_()),
    "before a sum": _then(lambda x: x[:, :1].mul_(3), lambda x: x.sum((2, 3))),
    "before it is gathered": _then(lambda x: x[:, :1].mul_(3), lambda x: x.flatten(1)),
}  # fmt: skip


def _made(kind: str, x: Tensor, mesh: Mesh) -> Any:
    """Return a map of the batch itself, of a result, or of overlapping windows."""
    if kind == "batch":
        return DistributedMap.of(x, mesh)
    cuts, plane = Partition.even((6, 8), mesh.grid), Box.whole((6, 8))
    if kind == "result":
        return DistributedMap(x[:, :, *cuts.box(mesh.rank).slices] * 1, cuts, mesh)
    reach = tuple(
        Box(tuple(at - 1 for at in box.start), tuple(at + 1 for at in box.stop)).intersect(plane)
        for box in cuts.boxes
    )
    return local_map(x[:, :, *reach[mesh.rank].slices].clone(), mesh, cuts, reach)


KINDS = ("batch", "result", "windows")


def _differences(grid: str) -> dict[tuple[str, str], float]:
    """Return the differences of three passes over one batch, which changes in each."""
    mesh, found = Mesh.of(grid), {}
    for name, function in FUNCTIONS.items():
        for kind in KINDS:
            plain, ours = _whole(0, *SHAPE), _whole(0, *SHAPE)
            apart = []
            for turn in range(3 if kind == "batch" else 1):
                torch.manual_seed(turn)
                wanted = function(plain)
                torch.manual_seed(turn)
                out = function(_made(kind, ours, mesh))
                got = out.full_tensor() if isinstance(out, DistributedMap) else out
                apart += [(got - wanted).abs().max()]
                if kind == "batch":
                    apart += [(plain - ours).abs().max()]
            found[name, kind] = torch.stack(apart).max().item()
    return found


@cache
def differences(grid: str) -> list[dict[tuple[str, str], float]]:
    found: list[dict[tuple[str, str], float]] = on_ranks(Grid.parse(grid).size, _differences, grid)
    return found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_was_changed_in_place_is_seen_as_in_one_process(name: str, kind: str, grid: str) -> None:
    assert all(found[name, kind] < 1e-12 for found in differences(grid))


class _Same(SpatialLayer):
    """A layer whose outputs are the window."""

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def input_box(self, output: Box) -> Box:
        return output

    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        return window


class _Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same = _Same()

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        self.same(x).mul_(3)
        return x + 0


def _networks() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        nn.Sequential(
            nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(3, 2, 3)
        ),
        nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3)),
        _Both(),
    ]


def _of_networks(grid: str) -> float:
    """Return the largest difference of outputs, batches and gradients after two updates on one batch."""
    apart = []
    for module in _networks():
        module = module.double()
        partitioned = partition(module, grid)
        plain, ours = _whole(0, *SHAPE), _whole(0, *SHAPE)
        for _ in range(2):
            outs = module(plain), partitioned(ours)
            apart += [(outs[0] - outs[1].full_tensor()).abs().max(), (plain - ours).abs().max()]
            for out in outs:
                if out.requires_grad:
                    (out**2).sum().backward()
        for one, other in zip(module.parameters(), partitioned.parameters(), strict=True):
            assert one.grad is not None
            apart.append((one.grad - other.grad.full_tensor()).abs().max())
    return float(torch.stack([one.detach() for one in apart]).max())


@pytest.mark.parametrize("grid", GRIDS)
def test_networks_that_begin_in_place_train_as_in_one_process(grid: str) -> None:
    assert max(on_ranks(Grid.parse(grid).size, _of_networks, grid)) < 1e-10


def _flat_then_changed(x: Any) -> Any:
    flat = (x * 1).flatten(1)
    return flat.relu_()


def _flat_changed(x: Any) -> Any:
    x = x * 1
    x.flatten(1).relu_()
    return _conv(x)


def _changed_after_flat(x: Any) -> Any:
    x = x * 1
    flat = x.view(2, -1)
    x.mul_(2)
    return flat


def _windows_changed(x: Any) -> Any:
    x = x * 1
    x.view(2, 4, 3, 2, 4, 2).mul_(2)
    return _conv(x)


def _changed_after_windows(x: Any) -> Any:
    x = x * 1
    windows = x.view(2, 4, 3, 2, 4, 2)
    x[:, :1].mul_(2)
    return windows


def _changed_through_channels_last(x: Any) -> Any:
    x = x * 1
    tokens = x.flatten(2)
    x.permute(0, 2, 3, 1).mul_(2)
    return tokens


def _result(x: Any) -> Any:
    return x * 1


def _last(x: Any) -> Any:
    return (x * 1).permute(0, 2, 3, 1)


def _part_changed(
    whole: Callable[[Any], Any], part: Callable[[Any], Any], change: Callable[[Any], object]
) -> Callable[[Any], Any]:
    """Return a function that uses an array after a change of a part of it."""

    def changed(x: Any) -> Any:
        array = whole(x)
        change(part(array))
        return array * 1

    return changed


def _whole_changed(whole: Callable[[Any], Any], part: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that uses a part of an array after a change of the array."""

    def changed(x: Any) -> Any:
        array = whole(x)
        found = part(array)
        array.mul_(2)
        return found * 1

    return changed


def _with_class_token(x: Any) -> Any:
    return torch.cat([_whole(5, 2, 1, 4), x.flatten(2).transpose(1, 2)], 1)


def _features(
    change: Callable[[Any], object], then: Callable[[], nn.Module] = nn.Identity
) -> Callable[[Any], Any]:
    """Return a function that uses features in parts after a change."""

    def changed(x: Any) -> Any:
        torch.manual_seed(0)  # the same on every rank, whichever imported this module when
        layers = partition(nn.Sequential(nn.Linear(4, 6), then()), x.mesh)
        with local_parameters_installed(layers):
            features = layers[0](x.mean((2, 3)).float())
            change(features)
            return layers[1](features) + 1

    return changed


def _with_gradient(mesh: Mesh) -> Any:
    return DistributedMap.of(_whole(1, *SHAPE).requires_grad_() * 1, mesh)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "a flattened copy": _flat_changed,
    "what has a flattened copy": _changed_after_flat,
    "windows of a map": _windows_changed,
    "what has windows": _changed_after_windows,
    "what has tokens, through a view": _changed_through_channels_last,
    "a batch with channels last": lambda x: x.permute(0, 2, 3, 1).mul_(2),
    "a batch with channels last, set": lambda x: _set((..., 0), 2)(x.permute(0, 2, 3, 1)),
    "a function without a rule": lambda x: (x * 1).permute(0, 2, 3, 1).cumsum_(1),
    "a slice of features": _features(lambda features: features[:, :3].mul_(3)),
    "features set": _features(_set((ALL, slice(0, 3)), 0)),
    "a slice of features, before a layer": _features(lambda x: x[:, :3].mul_(3), lambda: nn.Linear(6, 2)),
    "a function of whole features": _features(lambda x: F.rrelu(x, training=True, inplace=True)),
    "a batch that needs a gradient": lambda x: F.relu(_with_gradient(x.mesh), inplace=True),
    "a parameter beside": lambda x: x.add_(torch.ones(1, dtype=torch.float64, requires_grad=True)),
    "one image set": _then(_set(0, 1)),
    "rows of an array": _part_changed(_last, lambda x: x[:, 1:3], lambda part: part.mul_(2)),
    "rows of an array, narrowed": _part_changed(_last, lambda x: x.narrow(1, 2, 3), lambda x: x.zero_()),
    "rows of an array, in chunks": _part_changed(_last, lambda x: x.chunk(2, 1)[0], lambda x: x.add_(1)),
    "rows of rows": _part_changed(_last, lambda x: x[:, 1:5][:, 1:3], lambda part: part.mul_(2)),
    "pixels of rows": _part_changed(_last, lambda x: x[:, 1:5].flatten(1, 2), lambda part: part.mul_(2)),
    "what has rows": _whole_changed(_last, lambda x: x[:, 1:3]),
    "rows of an array, set": _part_changed(_last, lambda x: x, _set((ALL, slice(1, 3)), 0)),
    "rows of rows of a map": _part_changed(_result, lambda x: x[:, :, 1:5][:, :, :2], lambda x: x.neg_()),
    "one row of a map": _part_changed(_result, lambda x: x[:, :, 3], lambda x: x.mul_(2)),
    "a token": _part_changed(_with_class_token, lambda x: x[:, 0], lambda x: x.add_(1)),
    "a token, set": _part_changed(_with_class_token, lambda x: x, _set((ALL, 0), 0)),
    "what has a token": _whole_changed(_with_class_token, lambda x: x[:, 0]),
    "pixels set": _then(_set((ALL, ALL, slice(0, 2)), 1)),
}  # fmt: skip


def _words(grid: str) -> dict[str, str]:
    mesh, found = Mesh.of(grid), {}
    for name, function in REFUSED.items():
        try:
            function(DistributedMap.of(_whole(0, *SHAPE), mesh))
        except UserError as refused:
            found[name] = str(refused)
    x = DistributedMap.of(_whole(0, *SHAPE), mesh)
    assert _flat_then_changed(x).amin() >= 0
    _features(lambda features: F.relu(features, inplace=True))(x)  # which parts can follow
    return found


@pytest.mark.parametrize("grid", GRIDS)
def test_work_in_place_that_parts_cannot_follow_is_refused(grid: str) -> None:
    for words in on_ranks(Grid.parse(grid).size, _words, grid):
        assert words.keys() == REFUSED.keys()
        assert all("use " in said or "call " in said for said in words.values())


def _cropped(x: Any) -> Any:
    part = x[:, :, 1:-1]
    part.mul_(2)
    return x + 0


def _changed_below(x: Any) -> Any:
    part = x.narrow(3, 1, 4)
    x.mul_(2)
    return part + 0


def _of_batches() -> list[bool]:
    """True where slices of space of a batch are views of it."""
    found = []
    for change in (_cropped, _changed_below, lambda x: x.chunk(2, 2)[1].add_(1), lambda x: x[..., 0].zero_()):
        plain, ours = _whole(0, *SHAPE), _whole(0, *SHAPE)
        wanted, got = change(plain), change(DistributedMap.of(ours, Mesh.of("1x2")))
        got = got.full_tensor() if isinstance(got, DistributedMap) else got
        found.append(torch.equal(got, wanted) and torch.equal(plain, ours))
    return found


def test_slices_of_space_of_a_batch_are_views_of_it() -> None:
    assert on_ranks(2, _of_batches) == [[True] * 4] * 2


def _of_copies() -> list[str]:
    """Return the errors of changes that a copy of other pixels would miss."""
    found = []
    for change in (_cropped, _changed_below):
        with pytest.raises(UserError) as refused:
            change(DistributedMap.of(_whole(0, *SHAPE), Mesh.of("1x2")) * 1)
        found.append(str(refused.value))
    return found


def test_a_change_in_place_that_a_crop_would_miss_is_refused() -> None:
    for found in on_ranks(2, _of_copies):
        assert all("works in place on a tensor that has a view" in each for each in found)

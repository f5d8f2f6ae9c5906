"""Layers and stacks under torch's fully_shard, in one process."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from tests.nn.test_foreign_code import LEARNING, build
from torch import distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

learning = pytest.mark.parametrize("name", LEARNING)


@pytest.fixture(scope="module")
def alone() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


@learning
def test_an_operation_in_place_behind_a_sharded_layer_leaves_its_gradients_right(
    name: str, alone: DeviceMesh
) -> None:
    layer, x = build(name)
    sharded = copy.deepcopy(layer)
    fully_shard(sharded, mesh=alone)
    nn.functional.relu_(sharded(x)).sum().backward()  # type: ignore[no-untyped-call]  # untyped
    layer(x).relu().sum().backward()
    for found, expected in zip(sharded.parameters(), layer.parameters(), strict=True):
        assert found.grad is not None and expected.grad is not None
        torch.testing.assert_close(found.grad.full_tensor(), expected.grad)  # type: ignore[attr-defined]  # sharded


@learning
def test_a_layer_sharded_on_the_meta_device_is_filled_as_any(name: str, alone: DeviceMesh) -> None:
    layer, x = build(name)
    with torch.device("meta"):
        empty, _ = build(name)
    fully_shard(empty, mesh=alone)
    empty.to_empty(device="cpu")
    for one in (layer, empty):
        torch.manual_seed(0)
        one.reset_parameters()  # type: ignore[operator]  # which every layer has
        one.eval()
    assert torch.equal(empty(x), layer(x))


@learning
def test_the_state_of_a_sharded_layer_makes_the_round_trip(name: str, alone: DeviceMesh) -> None:
    layer, x = build(name)
    expected = layer(x)
    fully_shard(layer, mesh=alone)
    layer.load_state_dict(copy.deepcopy(layer.state_dict()))
    torch.testing.assert_close(layer(x), expected)

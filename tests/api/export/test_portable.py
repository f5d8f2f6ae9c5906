"""Layers of torch's operations compute what Cotswold's layers compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cotswold.api.export.portable import own_layers, portable
from cotswold.geometry import MapShape
from cotswold.nn import (
    L2Pool2d,
    LocalContrastNorm2d,
    LocallyConnected1d,
    LocallyConnected2d,
    LocallyConnected3d,
    SparseAutoencoderStack,
)
from cotswold.recipe.schema import Stack


def stack(**settings: object) -> SparseAutoencoderStack:
    fields = {"kernel_size": 5, "stride": 3, "block": 3, "channels": 3, **settings}
    found = SparseAutoencoderStack(Stack.model_validate(fields).geometry(MapShape(3, 20, 23)))
    found.calibrate(torch.randn(6, 3, 20, 23))
    return found


LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (LocallyConnected2d(3, 4, (9, 11), (3, 4), stride=(2, 1), padding=1, block=(2, 3)), (3, 9, 11)),
    (LocallyConnected2d(3, 4, (9, 11), (3, 4), padding="same", block=2, bias=False), (3, 9, 11)),
    (LocallyConnected2d(3, 4, (9, 11), (3, 4), padding="valid", stride=3), (3, 9, 11)),
    (LocallyConnected1d(3, 5, 17, 4, stride=2, block=2), (3, 17)),
    (LocallyConnected3d(2, 3, (5, 6, 7), (3, 2, 3), block=(2, 1, 2), padding=1), (2, 5, 6, 7)),
    (L2Pool2d(3), (3, 9, 8)),
    (L2Pool2d(4, padding="same", epsilon=0.1), (3, 9, 8)),
    (LocalContrastNorm2d(3), (3, 9, 8)),
    (LocalContrastNorm2d(4, padding="same", floor=0.5), (3, 9, 8)),
    (LocalContrastNorm2d(4), (3, 19, 18)),
    (stack(pool=1, norm=5, pool_padding="same"), (3, 20, 23)),
    (stack(pool=3, norm=3), (3, 20, 23)),
    (stack(pool=2, norm=1), (3, 20, 23)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda each: type(each).__name__)
def test_a_portable_layer_computes_the_same(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Identity(), layer).eval()
    made = portable(network, (x,))
    assert own_layers(network) == [f"1 ({type(layer).__name__})"]
    assert own_layers(made) == []
    with torch.no_grad():
        torch.testing.assert_close(made(x), network(x), rtol=1e-4, atol=1e-5)


def test_the_network_itself_may_be_a_layer_of_cotswold() -> None:
    layer, x = LocallyConnected2d(1, 2, 6, 3), torch.randn(2, 1, 6, 6)
    made = portable(layer, (x,))
    torch.testing.assert_close(made(x), layer(x).detach())
    assert layer.weight.requires_grad and layer.training

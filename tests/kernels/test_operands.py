"""A kernel gets the address of readable memory, or the caller gets an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

import cotswold
from cotswold import nn
from cotswold.errors import UserError
from cotswold.kernels.available import backend
from cotswold.kernels.cuda.launch import TunedKernel
from cotswold.kernels.operands import check_cuda_tensor, pointer_of
from cotswold.ops import products
from cotswold.ops.updates import UpdateRule, apply_pushes


class _Wrapper(Tensor):
    """A tensor subclass without memory."""

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> object:
        raise AssertionError("nothing may be computed")


def _dtensor(values: Tensor) -> Tensor:
    alone = torch.zeros(1, dtype=torch.int64)
    mesh = DeviceMesh("cpu", alone, mesh_dim_names=("ranks",), _init_backend=False, _rank=0)
    return DTensor.from_local(values, mesh, [Replicate()], run_check=False)


def _wrapper(values: Tensor) -> Tensor:
    return Tensor._make_wrapper_subclass(_Wrapper, values.shape, dtype=values.dtype)


def _freed(values: Tensor) -> Tensor:
    values = values.clone()
    values.untyped_storage().resize_(0)
    return values


def _view_of_freed(values: Tensor) -> Tensor:
    whole = torch.cat([values.flatten(), values.flatten()])
    part = whole[values.numel() :].view(values.shape)
    whole.untyped_storage().resize_(0)
    return part


WITHOUT_MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    "a DTensor": _dtensor,
    "a wrapper subclass": _wrapper,
    "freed memory": _freed,
    "a part of freed memory": _view_of_freed,
    "the meta device": lambda values: values.to("meta"),
    "a negated view": lambda values: torch.imag(torch.complex(values, values).conj()),
}


@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_no_kernel_gets_the_address_of_a_tensor_that_it_cannot_read(kind: str) -> None:
    with pytest.raises(UserError, match=r"kernel .*cannot read"):
        pointer_of(WITHOUT_MEMORY[kind](torch.ones(3, 4)))


@pytest.mark.parametrize("kind", [kind for kind in WITHOUT_MEMORY if kind != "the meta device"])
def test_no_program_for_cuda_gets_a_tensor_that_it_cannot_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.kernels.cuda.launch._kernel", lambda program: None)
    with pytest.raises(UserError, match=r"kernel .*cannot read"):
        TunedKernel("product", (), ()).start([WITHOUT_MEMORY[kind](torch.ones(3))], [], {}, 1, {})


@pytest.mark.parametrize("values", [torch.ones(2, 3), torch.ones(2, 3)[1:, 1:], torch.ones(0, 3)])
def test_a_tensor_with_memory_is_read_where_it_lies(values: Tensor) -> None:
    assert pointer_of(values) == values.data_ptr()
    check_cuda_tensor(values)


@pytest.mark.skipif(backend() != "llvm", reason="kernels of this package are not used here")
def test_filters_without_memory_are_refused_by_a_product() -> None:
    layer = nn.LocallyConnected2d(1, 2, (4, 4), 3)
    x, filters = torch.ones(2, 1, 4, 4), _dtensor(layer.weight.detach())
    with pytest.raises(UserError, match="DTensor"):
        products.product(x, filters, layer._planes[0].layer)


@pytest.mark.skipif(backend() != "llvm", reason="kernels of this package are not used here")
def test_weights_without_memory_are_refused_by_an_update() -> None:
    with pytest.raises(UserError, match="DTensor"):
        apply_pushes(UpdateRule("add"), _dtensor(torch.ones(8)), None, [(1.0, torch.ones(8))])


def test_layers_name_a_way_out_for_the_dtensors_of_tensor_parallelism() -> None:
    layers = (nn.LocallyConnected2d(1, 2, (6, 6), 3), nn.L2Pool2d(3), nn.LocalContrastNorm2d(3))
    x = _dtensor(torch.ones(2, 1, 6, 6))
    for layer in layers:
        for name, values in list(layer.named_parameters()):
            setattr(layer, name, torch.nn.Parameter(_dtensor(values.detach())))
        with pytest.raises(UserError, match=r"DTensors.*partition"):
            layer(x)


def test_kernels_get_addresses_in_one_place_alone() -> None:
    source = Path(cotswold.__file__).parent
    files = [*(source / "kernels").rglob("*.py"), *(source / "ops").rglob("*.py")]
    asking = {path.name for path in files if re.search(r"\.data_ptr\(\)", path.read_text())}
    assert asking == {"operands.py", "execution.py"}  # the latter for its own scratch memory

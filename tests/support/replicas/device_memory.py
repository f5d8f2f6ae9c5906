"""Tensors of a device and of memory, told apart where the CPU stands for the device.

Knows: what operations are given and give. Does not know: who computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cotswold.training.strategies.base import Batch


class Places(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """While it is entered an operation that has tensors of both is an error, but for copies, and what is made
    of those of the device is there too. Numbers alone may be anywhere, as for CUDA."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With ``monkeypatch`` batches that are moved, and what is read of the device, are copies."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._there: dict[int, Tensor] = {}
        """By where they lie, which nothing else takes as long as they live."""
        self.seen: set[str] = set()
        """Operations on the device."""
        in_memory = Tensor.numpy

        def numpy(tensor: Tensor) -> Any:
            assert not self._has(tensor), "a tensor of the device has no memory of this process"
            return in_memory(tensor)

        def cpu(tensor: Tensor) -> Tensor:
            return torch.from_numpy(in_memory(tensor).copy())

        def on(batch: Batch, device: torch.device) -> Batch:
            assert batch.targets is not None
            inputs, targets = cpu(batch.inputs), cpu(batch.targets)
            self.put(inputs, targets)
            return Batch(inputs, targets)

        monkeypatch.setattr(Tensor, "numpy", numpy)
        monkeypatch.setattr(Tensor, "cpu", cpu)
        monkeypatch.setattr(Batch, "on", on)

    def put(self, *tensors: object) -> None:
        """These are on the device."""
        for each in tensors:
            if isinstance(each, Tensor):
                self._there[each.untyped_storage().data_ptr()] = each

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name, given = str(func), tree_leaves((args, kwargs))
        places = {
            self._has(each) for each in given if isinstance(each, Tensor) and (each.dim() or self._has(each))
        }
        found = func(*args, **(kwargs or {}))
        if not name.startswith("aten.copy_"):
            assert len(places) < 2, f"{name} has tensors of both"
            if True in places:
                self.seen.add(name)
                self.put(*tree_leaves(found))
        return found

    def _has(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._there

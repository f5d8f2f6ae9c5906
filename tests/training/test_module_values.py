"""Values of a module, its samples and its loss that are not ordinary numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.training.runs import events
from tests.training.test_modules import labelled, opened, settings, train
from torch import Tensor, nn

from cotswold.errors import UserError
from cotswold.training.flat import FlatModule
from cotswold.training.module_checks import on_its_device

FEATURES, CLASSES = 6, 3


class Masked(nn.Module):
    """A layer whose outputs are mixed by a mask of -inf, as attention has it."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("mask", torch.full((CLASSES, CLASSES), -torch.inf).triu(1))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs) @ self.mask.softmax(-1)
        return found


def test_a_mask_of_infinities_is_no_divergence(tmp_path: Path) -> None:
    run = train(opened(tmp_path / "run", module=Masked(), validation=labelled(), settings=settings(epochs=1)))
    assert events(run, "end")[0]["status"] == "finished"


def test_a_module_is_trained_on_the_device_on_which_it_is() -> None:
    elsewhere = nn.Linear(2, 2, device="meta")  # any that is not the CPU
    assert on_its_device(elsewhere, settings()).device == "meta"
    assert on_its_device(elsewhere, settings(device="cpu")).device == "cpu"
    assert on_its_device(nn.Linear(2, 2), settings()).device == "cpu"
    with pytest.raises(UserError, match="has tensors on cpu and meta; give device="):
        on_its_device(nn.Sequential(nn.Linear(2, 2), elsewhere), settings())


def test_a_module_without_values_or_that_cannot_learn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="weight, bias of Linear are on the device meta"):
        opened(tmp_path / "meta", module=nn.Linear(FEATURES, CLASSES, device="meta"))
    with torch.inference_mode():
        module = nn.Linear(FEATURES, CLASSES)
    with pytest.raises(UserError, match=r"weight, bias of Linear were made under torch\.inference_mode"):
        opened(tmp_path / "inference", module=module)


def test_samples_without_values_are_refused(tmp_path: Path) -> None:
    data = torch.ones(8, FEATURES, device="meta"), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(UserError, match="gives tensors on the device meta"):
        train(opened(tmp_path / "run", module=nn.Linear(FEATURES, CLASSES), dataset=data))


@pytest.mark.parametrize("kind", [torch.int64, torch.uint8, torch.complex64, torch.float64])
def test_samples_of_a_type_that_the_module_does_not_take_are_named(kind: torch.dtype, tmp_path: Path) -> None:
    data = torch.ones(8, FEATURES, dtype=kind), torch.zeros(8, dtype=torch.int64)
    said = rf"the samples are of {str(kind).removeprefix('torch.')}, and the parameters of Linear of float32"
    with pytest.raises(UserError, match=said):
        train(opened(tmp_path / "run", module=nn.Linear(FEATURES, CLASSES), dataset=data))


def test_an_embedding_that_is_given_floats_says_what_it_takes(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(2 * FEATURES, CLASSES))
    data = torch.ones(8, FEATURES), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(UserError, match=r"an embedding of Sequential takes whole numbers.*samples\.long"):
        train(opened(tmp_path / "run", module=module, dataset=data))


def test_parameters_that_lie_in_no_vector_are_told_which_strategy_takes_them() -> None:
    with pytest.raises(UserError, match=r"are torch.complex64 on cpu; .*train by strategy supervised"):
        FlatModule(nn.Linear(2, 2, dtype=torch.complex64))

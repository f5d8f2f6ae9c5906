"""Values of a module, its samples and its loss that are not ordinary numbers."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.training.runs import events
from tests.training.test_modules import labelled, opened, settings, train
from torch import Tensor, nn

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

"""A folder with a demo run of each kind, and fixtures that tests of runs share.

Knows: drawn images, small recipes, the process state that a run changes. Does not know: how a run is trained.

A conftest imports the fixtures that its tests need. `hasty_disk` and `threads` then apply to all tests below
the conftest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.support.training.small_recipes import draw_labelled, greedy, supervised


@dataclass(frozen=True)
class DemoFolder:
    """A folder with images and stores."""

    path: Path

    @property
    def images(self) -> Path:
        return self.path / "images"

    @property
    def stores(self) -> Path:
        return self.path / "stores"


@dataclass(frozen=True)
class DemoRuns(DemoFolder):
    """A folder with images, a recipe of each kind, and the places of a run of each."""

    @property
    def stacks_recipe(self) -> Path:
        return self.path / "stacks.toml"

    @property
    def layers_recipe(self) -> Path:
        return self.path / "layers.toml"

    def write(self) -> None:
        """Draw the images and write the recipes."""
        draw_labelled(self.images, 30)
        self.stacks_recipe.write_text(greedy(self.images))
        self.layers_recipe.write_text(supervised(self.images))


@pytest.fixture(autouse=True)
def hasty_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncing, which matters only to power cuts and would take most of the time of these tests."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore the number of threads of the process, which a run sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.support.training.small_recipes import draw_labelled, greedy, supervised

import cotswold


@dataclass(frozen=True)
class Desk:
    """A folder with pictures, a recipe of each kind, and a finished run of each."""

    path: Path

    @property
    def pictures(self) -> Path:
        return self.path / "pictures"

    @property
    def stores(self) -> Path:
        return self.path / "stores"

    @property
    def stacks_recipe(self) -> Path:
        return self.path / "stacks.toml"

    @property
    def layers_recipe(self) -> Path:
        return self.path / "layers.toml"

    @property
    def stacks(self) -> cotswold.Run:
        return cotswold.Run(self.path / "stacks")

    @property
    def layers(self) -> cotswold.Run:
        return cotswold.Run(self.path / "layers")


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("api"))
    draw_labelled(desk.pictures, 30)
    desk.stacks_recipe.write_text(greedy(desk.pictures))
    desk.layers_recipe.write_text(supervised(desk.pictures))
    for recipe, name in ((desk.stacks_recipe, "stacks"), (desk.layers_recipe, "layers")):
        cotswold.train(recipe, desk.path / name, stores=desk.stores)
    return desk


@pytest.fixture(autouse=True)
def hasty_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing matters to power cuts alone, and would take most of the time of these tests."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.support.cli.command import cotswold
from tests.support.training.small_recipes import draw_labelled, greedy, supervised


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
    def stacks(self) -> Path:
        return self.path / "stacks"

    @property
    def layers(self) -> Path:
        return self.path / "layers"

    @property
    def stacks_recipe(self) -> Path:
        return self.path / "stacks.toml"

    @property
    def layers_recipe(self) -> Path:
        return self.path / "layers.toml"


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    draw_labelled(desk.pictures, 30)
    desk.stacks_recipe.write_text(greedy(desk.pictures))
    desk.layers_recipe.write_text(supervised(desk.pictures))
    for recipe, run in ((desk.stacks_recipe, desk.stacks), (desk.layers_recipe, desk.layers)):
        said = cotswold("train", recipe, "--run", run, "--stores", desk.stores)
        assert said.status == 0, said.err
    return desk


@pytest.fixture(autouse=True)
def hasty_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing matters to power cuts alone, and would take most of the time of these tests."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A run sets the threads of the process; give them back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)

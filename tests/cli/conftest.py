from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli.command import cotswold
from tests.support.demo_runs import DemoRuns
from tests.support.demo_runs import hasty_disk as hasty_disk
from tests.support.demo_runs import threads as threads


class Desk(DemoRuns):
    """Demo runs, trained by the command."""

    @property
    def stacks(self) -> Path:
        return self.path / "stacks"

    @property
    def layers(self) -> Path:
        return self.path / "layers"


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.write()
    for recipe, run in ((desk.stacks_recipe, desk.stacks), (desk.layers_recipe, desk.layers)):
        said = cotswold("train", recipe, "--run", run, "--stores", desk.stores)
        assert said.status == 0, said.err
    return desk

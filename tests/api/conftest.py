from __future__ import annotations

import pytest
from tests.support.demo_runs import DemoRuns
from tests.support.demo_runs import hasty_disk as hasty_disk
from tests.support.demo_runs import threads as threads

import cotswold


class Desk(DemoRuns):
    """Demo runs, trained by `cotswold.train`."""

    @property
    def stacks(self) -> cotswold.Run:
        return cotswold.Run(self.path / "stacks")

    @property
    def layers(self) -> cotswold.Run:
        return cotswold.Run(self.path / "layers")


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("api"))
    desk.write()
    for recipe, name in ((desk.stacks_recipe, "stacks"), (desk.layers_recipe, "layers")):
        cotswold.train_recipe(recipe, desk.path / name, stores=desk.stores)
    return desk

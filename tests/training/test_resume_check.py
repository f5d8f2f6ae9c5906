"""The check of other packages' strategies finds omitted state."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.resume_check import check_resume
from tests.support.training.small_recipes import greedy, supervised

from cotswold.checkpoint import StateDict
from cotswold.ops import StepRule
from cotswold.training.strategies.build_stacks import stack_entry
from cotswold.training.strategies.greedy import Greedy
from cotswold.training.strategies.registry import ENTRIES


class Forgetful(Greedy):
    """Slows down with every step, and does not save the number of steps."""

    slowed = 1.0

    def rule(self, stack: int) -> StepRule:
        self.slowed *= 0.9
        found = super().rule(stack)
        return StepRule(rate=found.rate * self.slowed, momentum=found.momentum)


class Half(Forgetful):
    """Saves the number, and does not read it."""

    def state_dict(self) -> StateDict:
        return {**super().state_dict(), "slowed": self.slowed}


@pytest.mark.parametrize("strategy", ["greedy", "supervised"])
def test_strategies_that_keep_everything_pass(
    strategy: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(greedy(images) if strategy == "greedy" else supervised(images))
    check_resume(recipe, tmp_path, stores=stores)


@pytest.mark.parametrize(("kind", "named"), [(Forgetful, "filters"), (Half, "slowed")])
def test_what_is_forgotten_is_named(
    kind: type[Greedy],
    named: str,
    images: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ENTRIES, "greedy", stack_entry(kind))
    recipe = tmp_path / "small.toml"
    recipe.write_text(greedy(images))
    with pytest.raises(AssertionError, match=rf"stopped at step 1\d and resumed ends with .*{named}"):
        check_resume(recipe, tmp_path, stores=stores)

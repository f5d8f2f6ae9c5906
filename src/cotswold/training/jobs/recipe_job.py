"""The job of a recipe: a run on a prepared store.

Knows: how the strategy of a recipe is built, what the first event says of a store. Does not know: what all
jobs do.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from cotswold.data import Store
from cotswold.run import Recorder
from cotswold.training.data.sample_spec import KEY, SampleSpec
from cotswold.training.data.stores import warnings
from cotswold.training.jobs.check_outputs import check_metric_objects
from cotswold.training.jobs.extend import stages
from cotswold.training.jobs.job import Job
from cotswold.training.jobs.preflight import check_resources
from cotswold.training.strategies import registry as table
from cotswold.training.strategies.registry import Runner, TrainContext


@dataclass(frozen=True, kw_only=True)
class RecipeJob(Job):
    """A run on a prepared store, with the strategy that its recipe names.

    Args:
        store: The store of the samples.
    """

    store: Store

    def check(self) -> None:
        """Raise MemoryLimitError or DiskFullError if this rank's part of the network does not fit."""
        check_resources(self.recipe, self.store, self.run.path, self.rank_context)

    def metadata(self) -> Mapping[str, object]:
        """Return the preparation that samples need for the network."""
        return {KEY: SampleSpec.of(self.store).state()}

    def build(self, recorder: Recorder, exit_stack: ExitStack, *, fresh: bool) -> Runner:
        """Build the trainer of the recipe's strategy."""
        check_metric_objects(self.components.metrics, self.recipe.training, self.store)
        context = TrainContext(
            recipe=self.recipe,
            run=self.run,
            store=self.store,
            rank_context=self.rank_context,
            recorder=recorder,
            epochs=stages(self.recipe, self.totals),
            fresh=fresh,
            exit_stack=exit_stack,
            components=self.components,
        )
        torch.manual_seed(self.recipe.training.seed)  # for unseeded draws of strategies
        return table.entry(self.recipe.training.strategy).build(context)

    def announce(self, recorder: Recorder, start: Mapping[str, object]) -> None:
        """Write the start of the run and, for images, their whiteness."""
        recorder.event(
            "start",
            **start,
            samples=self.store.splits["train"],
            store=self.store.identity,
            notes=[*self.store.notes, *warnings(self.recipe, self.store)],
        )
        if self.store.kind == "images":
            split = "validation" if self.store.splits.get("validation") else "train"
            recorder.event("whiteness", split=split, **self.store.whiteness(split).as_dict())

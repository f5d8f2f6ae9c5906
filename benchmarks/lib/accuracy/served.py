"""A cell with data servers: an ordinary run of one process, resumed after an interruption.

Knows: how a run is trained, its curve, how it is evaluated. Does not know: simulated replicas, the order of
the cells.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import cotswold
from cotswold.analysis.classification import Classification
from cotswold.bench.measure import Document, rounded
from cotswold.recipe import Recipe, dump, parse

Watch = Callable[[Document], object]
"""Receives each entry of the curve."""


def learn(recipe: Recipe, seed: int, place: Path, stores: Path, watch: Watch) -> Document:
    """Train in the directory ``place`` and delete it.

    Return the curve and the last parameters' accuracies on validation and test samples.
    """
    training = recipe.training

    def hear(event: Mapping[str, object]) -> None:
        if event["kind"] == "validation" and "accuracy" in event:
            watch(_entry(event, training.batch_size))

    run = cotswold.train_recipe(
        parse(dump(recipe), overrides=[f"training.seed={seed}"]),
        directory=place,
        stores=stores,
        resume="if_started",
        progress=False,
        callbacks=[hear],
    )
    curve = [event for event in run.events if event["kind"] == "validation" and "accuracy" in event]
    way = [_entry(event, training.batch_size) for event in curve]
    shutil.rmtree(run.directory.best, ignore_errors=True)  # evaluate the last parameters, like other cells
    judged = cotswold.evaluate(run, progress=False)
    assert isinstance(judged, Classification), "a recipe with categories"
    shutil.rmtree(place)
    return {"seed": seed, "validation": way[-1]["accuracy"], "way": way, "test": rounded(judged.accuracy)}


def _entry(event: Mapping[str, object], batch: int) -> Document:
    return {
        "samples": int(str(event["step"])) * batch,
        "simulated_seconds": None,
        "loss": rounded(float(str(event["loss"]))),
        "learnt": None,
        "accuracy": rounded(float(str(event["accuracy"]))),
    }

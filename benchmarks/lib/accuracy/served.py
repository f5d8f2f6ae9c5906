"""A cell that data servers feed: an ordinary run of one process, resumed where it was cut off.

Knows: how a run is trained, its curve, how it is judged. Does not know: simulated replicas, which
cell comes when.
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
"""Hears each entry of the way."""


def learn(recipe: Recipe, seed: int, place: Path, stores: Path, watch: Watch) -> Document:
    """Train in the directory ``place``, which is gone afterwards; accuracies of the last parameters on
    validation and test samples, and the way there."""
    training = recipe.training

    def hear(event: Mapping[str, object]) -> None:
        if event["kind"] == "validation" and "accuracy" in event:
            watch(_entry(event, training.batch_size))

    run = cotswold.train(
        parse(dump(recipe), overrides=[f"training.seed={seed}"]),
        directory=place,
        stores=stores,
        resume="if_started",
        progress=False,
        on_event=hear,
    )
    curve = [event for event in run.events if event["kind"] == "validation" and "accuracy" in event]
    way = [_entry(event, training.batch_size) for event in curve]
    shutil.rmtree(run.directory.best, ignore_errors=True)  # the last parameters are judged, as in other cells
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

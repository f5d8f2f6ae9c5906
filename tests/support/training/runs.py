"""Runs that are started, stopped, resumed and compared.

Knows: jobs, checkpoints, events. Does not know: the tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.training.small_recipes import greedy, supervised
from torch import Tensor

from cotswold.checkpoint import Checkpoint, CheckpointManager
from cotswold.run import Event, RunDirectory, Stop, read_events, recorder
from cotswold.training import Job, RecipeJob, Resume, open_job


def started(text: str, run: Path, stores: Path) -> RecipeJob:
    recipe = run.with_suffix(".toml")
    recipe.write_text(text)
    return open_job(recipe, run, stores=stores)


def resumed(run: Path, stores: Path) -> RecipeJob:
    return open_job(None, run, stores=stores, resume=Resume.ALWAYS)


def finish(job: Job) -> RunDirectory:
    assert job.train(watch=lambda event: None, stop=Stop())
    return job.run


def stop_after(job: Job, step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Train until the event of a step requests a stop, like a signal in the middle of that step."""
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == step:
            stop.signal = 2

    monkeypatch.setattr(recorder, "EVENT_SECONDS", 0.0)
    return job.train(watch=watch, stop=stop)


def events(run: RunDirectory, kind: str) -> list[Event]:
    return [event for event in read_events(run.events) if event["kind"] == kind]


def losses(run: RunDirectory) -> list[float]:
    return [float(str(event["loss"])) for event in events(run, "validation")]


def last(folder: Path) -> Checkpoint:
    return Checkpoint(CheckpointManager(folder).paths()[-1])


def bits(run: RunDirectory) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """Return every byte of the last checkpoint's tensors, and its state without the seconds."""
    checkpoint = last(run.checkpoints)
    state: dict[str, Any] = json.loads(json.dumps(checkpoint.state))
    state["account"].pop("seconds")
    tensors = {name: _bytes(tensor) for name, tensor in checkpoint.tensors().items()}
    return tensors, state


def _bytes(tensor: Tensor) -> list[int]:
    values: list[int] = tensor.reshape(-1).contiguous().view(torch.uint8).tolist()
    return values


def recipe_of(strategy: str, images: Path) -> str:
    return supervised(images) if strategy == "supervised" else greedy(images, strategy=strategy)


def labelled_vectors(folder: Path, layers: str, **training: object) -> Path:
    """Write a recipe of strategy batch (`x.toml`) over 300 vectors of three classes; ``layers`` as TOML."""
    numbers = np.random.default_rng(0)
    labels = numbers.integers(0, 3, 300)
    np.save(folder / "x.npy", (numbers.normal(size=(300, 5)) + 2 * np.eye(3, 5)[labels]).astype(np.float32))
    np.save(folder / "x.labels.npy", labels)
    more = "".join(f", {name} = {str(value).lower()}" for name, value in training.items())
    recipe = folder / "x.toml"
    recipe.write_text(
        f'name = "x"\ndata = {{ type = "vectors", source = "{folder}/x.npy", labels = "file" }}\n'
        f"network = {{ layers = [{layers}] }}\n"
        f'training = {{ strategy = "batch", max_iterations = 5, portion_size = 16{more} }}\n'
    )
    return recipe

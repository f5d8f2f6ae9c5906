"""Runs of strategy `batch` on small sets, in one process.

Knows: recipes, jobs, events. Does not know: the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from tests.support.api.train import train_with
from torch import Tensor, nn

import cotswold
from cotswold import training
from cotswold.checkpoint import Checkpoint, CheckpointManager
from cotswold.run import Stop, read_events

RECIPE = """
name = "blobs"
data = {{ type = "vectors", source = "{source}", labels = "file", validation = 0.2 }}
network = {{ layers = [{{ type = "linear", features = 7 }}, {{ type = "tanh" }}] }}
training = {{ strategy = "batch", max_iterations = 12, portion_size = 32 }}
"""


def trained(
    recipe: Path | None,
    place: Path,
    stores: Path,
    *overrides: str,
    watch: Callable[[Mapping[str, object]], None] = lambda event: None,
    stop: Stop | None = None,
) -> Checkpoint:
    resume = training.Resume.ALWAYS if recipe is None else training.Resume.NEVER
    job = training.open_job(recipe, place, overrides=overrides, stores=stores, resume=resume)
    job.train(watch, stop or Stop())
    return Checkpoint(CheckpointManager(job.run.checkpoints).paths()[-1])


def events_of(place: Path) -> list[dict[str, object]]:
    return list(read_events(place / "events.jsonl"))


def events(place: Path, kind: str) -> list[dict[str, object]]:
    return [event for event in read_events(place / "events.jsonl") if event["kind"] == kind]


def step_of(checkpoint: Checkpoint) -> int:
    position = checkpoint.state["position"]
    assert isinstance(position, dict)
    return int(position["step"])


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return set(one.names) == set(other.names) and all(
        torch.equal(one.read(name), other.read(name)) for name in one.names
    )


def hard_to_tell() -> tuple[Tensor, Tensor]:
    """Return classes that no plane divides, so that a softmax regression has a minimum."""
    numbers = torch.Generator().manual_seed(3)
    inputs = torch.randn(400, 5, generator=numbers)
    return inputs, (inputs[:, :3] + torch.randn(400, 3, generator=numbers)).argmax(1)


def regression(place: Path, **settings: object) -> cotswold.Run:
    module = nn.Linear(5, 3)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    words = {"loss": "cross_entropy", "strategy": "batch", "max_iterations": 200, **settings}
    return train_with(module, hard_to_tell(), directory=place, **words)

"""A finished run of the current format, recorded once and read by every later version.

    python -m tests.support.training.recorded_run        writes tests/training/recorded/format-N again

Knows: samples that are equal on every processor, the recipe, facts of a machine that are left out. Does not
know: what is tested.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
from tests.support.training.runs import finish, started

from cotswold.recipe import FORMAT
from cotswold.run import RunDirectory

RECORDED = Path(__file__).parents[2] / "training" / "recorded"
SIDE = 8
SAMPLES = 40
SOURCE = "samples.npz"
RECIPE = f"""
name = "recorded"

[data]
source = "{SOURCE}"
labels = "file"
size = {SIDE}
colour = "grey"
per_image_standardise = false
whiten = false
dtype = "uint8"
validation = 0.2

[[network.layers]]
type = "convolution"
channels = 3
kernel_size = 3

[[network.layers]]
type = "normalisation"

[[network.layers]]
type = "relu"

[[network.layers]]
type = "dropout"

[training]
strategy = "supervised"
batch_size = 8
epochs = 2
threads = 1
"""
_LEFT_OUT = ("lock", "tensorboard", "logs", "status.json")
"""Files of a run that belong to its process."""


def write_samples(folder: Path) -> None:
    """Write labelled samples: noisy level or upright stripes, equal on every processor."""
    numbers = np.random.default_rng(0)
    labels = numbers.permutation(np.arange(SAMPLES) % 2)
    stripes = 120 * (np.arange(SIDE) % 4 < 2)
    level = np.broadcast_to(stripes[:, None], (SIDE, SIDE))
    samples = np.where(labels[:, None, None] == 0, level, level.T)
    samples = samples + numbers.integers(0, 120, (SAMPLES, SIDE, SIDE))
    np.savez(folder / SOURCE, x=samples.astype(np.uint8), labels=labels)


def train_recorded(folder: Path) -> RunDirectory:
    """Train the run in ``folder``, with its samples and stores; paths in its recipe are relative."""
    with contextlib.chdir(folder):
        write_samples(Path())
        finish(started(RECIPE, Path("run"), Path("stores")))
    return RunDirectory.open(folder / "run")


def record(target: Path) -> None:
    """Train the run and keep its files in ``target``, without facts of this machine."""
    with tempfile.TemporaryDirectory() as name:
        run = train_recorded(Path(name))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(run.path, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    path = target / "environment.json"
    found = json.loads(path.read_text())
    of_machine = {"system": "Linux", "processor": "", "processor_flags": []}
    store = f"stores/{Path(found['store']).name}"
    path.write_text(json.dumps({**found, **of_machine, "store": store}, indent=1) + "\n")


if __name__ == "__main__":
    record(RECORDED / f"format-{FORMAT}")

"""Subjects: sets with their transforms, and one case in a separate process.

Knows: recipes, stores, how a loader is run. Does not know: the list of cases, their summary.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import cotswold
from baselines.common import DEGREES, SCALE, SHIFT, LoaderSettings
from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.errors import MachineError
from cotswold.training import open_store
from lib.mnist import recipe_here

OURS, ALONE = "data servers", "transforms alone"
IN_PROCESS = {
    OURS: "lib.data_servers.cotswold_servers",
    ALONE: "baselines.in_process",
    "torch DataLoader": "baselines.torch_loader",
}
"""Modules that run in this process's Python."""
ELSEWHERE = {"Ray Data": "baselines.ray_data", "tf.data service": "baselines.tf_data_service"}
"""Modules that run in the Python of ``--baselines``."""
NEEDS = {"Ray Data": "ray.data", "tf.data service": "tensorflow"}
MOVES = [
    {"name": "rotation", "degrees": DEGREES, "fill": "zero"},
    {"name": "affine", "scale": [1 - SCALE, 1 + SCALE], "fill": "zero"},
    {"name": "translation", "fraction": SHIFT, "fill": "zero"},
]
TRANSFORMS = {
    "moves": MOVES,
    "elastic": [*MOVES, {"name": "elastic", "alpha": 34.0, "sigma": 4.0, "fill": "zero"}],
}
PLAIN = ["data.whiten=false", "data.per_image_standardise=false", "data.dtype=uint8"]
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Subject:
    """A set with its transforms."""

    name: str
    recipe: str
    overrides: tuple[str, ...]
    transform: str
    batch: int

    @property
    def tables(self) -> str:
        """Return the transforms as JSON."""
        return json.dumps(TRANSFORMS[self.transform])

    def store(self, stores: Path) -> Store:
        """Return the set's samples."""
        return open_store(recipe_here(self.recipe, stores, [*PLAIN, *self.overrides]), stores)

    def images(self, stores: Path) -> Path:
        """Return a file of the training samples, which other loaders read."""
        store = self.store(stores)
        path = stores / f"{store.path.name}.npy"
        if not path.is_file():
            part = path.with_suffix(".part.npy")
            np.save(part, store.read_stored("train", 0, store.splits["train"]))
            part.replace(path)
        return path


MNIST, CALTECH = "MNIST, 1 x 28 x 28", "Caltech-101, 3 x 100 x 100"
SUBJECTS = {
    "mnist": Subject(MNIST, "adam-mnist", (), "moves", 64),
    "mnist-256": Subject(MNIST, "adam-mnist", (), "moves", 256),
    "mnist-elastic": Subject(f"{MNIST}, elastic", "adam-mnist", (), "elastic", 64),
    "caltech": Subject(CALTECH, "distbelief-images", ("data.size=100", "data.unit_rms=false"), "moves", 48),
}


@dataclass(frozen=True)
class Bench:
    """Settings that all cases share."""

    stores: Path
    baselines: Path | None
    """Path of a Python with Ray and TensorFlow."""
    warm_seconds: float
    seconds: float
    cache_bytes: int = 1 << 30

    def fed(self, subject: Subject, who: str, workers: int, pause: float = 0.0) -> Document:
        """Measure one case. Raises MachineError if it fails."""
        store = subject.store(self.stores)
        transform = store.transform
        told: Document = asdict(
            LoaderSettings(
                str(subject.images(self.stores).absolute()),
                subject.batch,
                workers,
                self.warm_seconds,
                self.seconds,
                pause,
                subject.tables,
                float(getattr(transform, "scale", 1.0)),
                float(getattr(transform, "offset", 0.0)),
            )
        )
        if who == OURS:
            told["serving"] = {"store": str(store.path.absolute()), "cache_bytes": self.cache_bytes}
        if who in IN_PROCESS:
            found = ran(sys.executable, IN_PROCESS[who], told, self.warm_seconds + self.seconds)
        else:
            assert self.baselines is not None, "`lacks` was checked"
            found = ran(str(self.baselines), ELSEWHERE[who], told, self.warm_seconds + self.seconds)
        samples, seconds = _number(found, "samples"), _number(found, "seconds")
        return {
            **found,
            "who": who,
            "workers": workers,
            "samples_a_second": rounded(samples / seconds),
            "samples_a_core_second": rounded(samples / _number(found, "processor_seconds")),
            "waited": rounded(_number(found, "waited_seconds") / seconds),
            "memory_mib": rounded(_number(found, "memory_bytes") / 2**20),
        }

    def lacks(self, who: str) -> str:
        """Return the reason why a loader cannot run here, or an empty string."""
        if who in IN_PROCESS:
            return ""
        if self.baselines is None:
            return "no --baselines"
        words = [str(self.baselines), "-c", f"import {NEEDS[who]}"]
        try:
            done = subprocess.run(words, capture_output=True, timeout=_START_SECONDS, check=False)
        except OSError as error:
            return f"{self.baselines} does not run ({error.strerror})"
        return "" if done.returncode == 0 else f"{self.baselines} has no {NEEDS[who]}"


def ran(python: str, module: str, told: Mapping[str, object], seconds: float) -> Document:
    """Return the last line that a module of benchmarks/ prints in a Python. Raises MachineError."""
    folder, package = Path(__file__).parents[2], Path(cotswold.__file__).parents[1]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(package)]),
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    try:
        done = subprocess.run(
            [python, "-m", module, json.dumps(told)],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=seconds + _START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"{module} did not end within {seconds + _START_SECONDS:.0f} s") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:  # Ray may fail at its end
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise MachineError(f"{module} ended with exit code {done.returncode}: {last:.300}")
    found: Document = json.loads(lines[-1])
    return found


def _number(cell: Document, name: str) -> float:
    value = cell[name]
    assert isinstance(value, int | float), f"{name} is a number"
    return float(value)

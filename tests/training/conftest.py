from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.demo_runs import hasty_disk as hasty_disk
from tests.support.demo_runs import threads as threads
from tests.support.training.batch_runs import RECIPE
from tests.support.training.small_recipes import draw_labelled


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder of 60 images in two classes."""
    folder = tmp_path_factory.mktemp("images")
    draw_labelled(folder, 30)
    return folder


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the stores' directory of a test session."""
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a recipe of strategy `batch` with 331 vectors in three classes."""
    folder = tmp_path_factory.mktemp("blobs")
    numbers = np.random.default_rng(0)
    labels = numbers.integers(0, 3, 331)
    rows = numbers.normal(size=(331, 5)) + 2 * np.eye(3, 5)[labels]
    np.savez(folder / "blobs.npz", x=rows.astype(np.float32), labels=labels)
    np.save(folder / "blobs.npy", rows.astype(np.float32))
    np.save(folder / "blobs.labels.npy", labels)
    path = folder / "blobs.toml"
    path.write_text(RECIPE.format(source=folder / "blobs.npy"))
    return path

"""Count the files that a training step of a small stack enters, and its returns to them.

    python benchmarks/call_path.py [--run] [--list] [--source FOLDER]

A file counts when a function of it is called. A *return* counts when a file is entered again after another
one. The step is the third, so that one-time preparation does not count. With ``--run``, a supervised run of
80 images counts instead: `cotswold.train` with a prepared store and compiled kernels, for two epochs.
``--source`` names another ``src``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable
from inspect import CO_NEWLOCALS
from itertools import count
from pathlib import Path
from types import FrameType

RECIPE = """
name = "small"
[data]
source = "images.npz"
labels = "file"
size = 12
whiten = false
validation = 0.2
[[network.layers]]
type = "convolution"
channels = 4
kernel_size = 3
[[network.layers]]
type = "normalisation"
[[network.layers]]
type = "relu"
[[network.layers]]
type = "dropout"
[[network.layers]]
type = "local"
channels = 3
kernel_size = 4
stride = 2
[training]
strategy = "supervised"
batch_size = 8
epochs = 2
threads = 1
"""


def walked(step: Callable[[], object], package: Path) -> list[str]:
    """Return the files of a package in the order in which a call enters them, without repeated neighbours."""
    inside, found = str(package.resolve()), list[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & CO_NEWLOCALS and code.co_filename.startswith(inside):
            name = str(Path(code.co_filename).relative_to(inside))
            if not found or found[-1] != name:
                found.append(name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def small_step() -> Callable[[], object]:
    """Return a step of 24 images on a stack of 8x8 filters."""
    import torch

    from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
    from cotswold.ops import StackObjective, StackState, StepRule, calibrate, random_filters, stack_step
    from cotswold.ops.filters import filter_norms

    layer = BlockLocal(MapShape(3, 20, 20), Window(8, 2), Window(8, 2), rows=1, columns=1, depth=8)
    smoothing = Smoothing(3)
    geometry = StackGeometry(layer, smoothing, Smoothing(1))
    filters = random_filters(layer, 0, 0)
    state = StackState(
        filters, filter_norms(filters), torch.zeros_like(filters), torch.ones(()), torch.ones(())
    )
    batch = torch.randn((24, 3, 20, 20), generator=torch.Generator().manual_seed(0))
    calibrate(state, batch, geometry, StackObjective())
    return lambda: stack_step(state, batch, geometry, StackObjective(), StepRule(2.0))


def small_run(folder: Path) -> Callable[[], object]:
    """Return a supervised run of 80 images with an untied layer, in a folder of its own each time."""
    import numpy as np

    import cotswold

    numbers = np.random.default_rng(0)
    labels = np.arange(80) % 2
    images = numbers.integers(0, 100, (80, 12, 12)) + 100 * labels[:, None, None]
    np.savez(folder / "images.npz", images=images.astype(np.uint8), labels=labels)
    recipe, runs = folder / "run.toml", count()
    recipe.write_text(RECIPE)
    return lambda: cotswold.train_recipe(
        recipe,
        folder / f"run-{next(runs)}",
        stores=folder / "stores",
        overrides={"data.source": str(folder / "images.npz")},
        progress=False,
    )


def main() -> None:
    """Print the files and returns of a step or run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", action="store_true", help="count a supervised run of 80 images")
    parser.add_argument("--list", action="store_true", help="also print the files in the order of entry")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    chosen = parser.parse_args()
    sys.path.insert(0, str(chosen.source.resolve()))
    with tempfile.TemporaryDirectory() as folder:
        step = small_run(Path(folder)) if chosen.run else small_step()
        for _ in range(2):
            step()
        path = walked(step, chosen.source / "cotswold")
    files = dict.fromkeys(path)
    if chosen.list:
        print(*path, sep="\n")
    print(f"{len(files)} files, {len(path) - len(files)} returns to a file entered before")


if __name__ == "__main__":
    main()

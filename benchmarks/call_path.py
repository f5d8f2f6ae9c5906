"""Count the files that a training step of a small stack enters, and its returns to them.

    python benchmarks/call_path.py [--list] [--source FOLDER]

A file counts when its code is entered. A *return* counts when a file is entered again after another one. The
step is the third, so that one-time preparation does not count. ``--source`` names another ``src``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType


def walked(step: Callable[[], object], package: Path) -> list[str]:
    """Return the files of a package in the order in which a call enters them, without repeated neighbours."""
    inside, found = str(package.resolve()), list[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(inside):
            name = str(Path(file).relative_to(inside))
            if not found or found[-1] != name:
                found.append(name)

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
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


def main() -> None:
    """Print the files and returns of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also print the files in the order of entry")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    chosen = parser.parse_args()
    sys.path.insert(0, str(chosen.source.resolve()))
    step = small_step()
    for _ in range(2):
        step()
    path = walked(step, chosen.source / "cotswold")
    files = dict.fromkeys(path)
    if chosen.list:
        print(*path, sep="\n")
    print(f"{len(files)} files, {len(path) - len(files)} returns to a file entered before")


if __name__ == "__main__":
    main()

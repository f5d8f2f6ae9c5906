"""Compare the speed of two source trees of Cotswold.

    git worktree add /tmp/before REVISION
    python benchmarks/before_after.py --before /tmp/before/src [--rounds 11] [--out benchmarks/results]

Every case runs in two processes that stay alive, one per tree. They alternate, so that other load on the
machine meets both. Prints medians, their quartiles, and the median of the ratios of neighbouring rounds. The
recipes use only fields that both trees know.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

RECIPE = """
name = "before-after"
data = { source = "builtin:demo", size = 64, limit = 400 }
network = { stacks = [{ kernel_size = 8, stride = 2, block = [2, 2], channels = 8, pool = 3, norm = 3 }] }
training = { strategy = "greedy", batch_size = 24, epochs = 12 }
"""


def stack_step(field: int, stride: int, size: int, depth: int, images: int, steps: int) -> Callable[[], None]:
    """Return a function that runs some steps of a stack."""
    import torch

    from cotswold import ops
    from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window

    torch.manual_seed(0)
    window = Window(field, stride)
    layer = BlockLocal(MapShape(3, size, size), window, window, 4, 4, depth)
    geometry = StackGeometry(layer, Smoothing(3), Smoothing(3))
    filters = ops.random_filters(layer, 0, 0)
    one = torch.ones((), dtype=torch.float64)
    state = ops.StackState(filters, ops.filter_norms(filters), torch.zeros_like(filters), one, one.clone())
    batch = ops.images_last(torch.randn(images, 3, size, size))
    objective, rule = ops.StackObjective(), ops.StepRule(rate=0.1)

    def run() -> None:
        for _ in range(steps):
            ops.stack_step(state, batch, geometry, objective, rule)

    return run


def local_layer() -> Callable[[], None]:
    """Return a forward and backward pass of an untied layer on a map of ordinary layout."""
    import torch

    from cotswold import ops
    from cotswold.geometry import BlockLocal, MapShape, Window

    layer = BlockLocal(MapShape(16, 32, 32), Window(5, 1), Window(5, 1), 1, 1, 16)
    weights = torch.randn(layer.filters_shape, requires_grad=True)
    x = torch.randn(32, 16, 32, 32, requires_grad=True)

    def run() -> None:
        ops.local_product(x, weights, layer).square().sum().backward()  # type: ignore[no-untyped-call]  # torch's

    return run


def checkpoint() -> Callable[[], None]:
    """Return a function that saves and reads 64 MB."""
    import torch

    try:
        from cotswold.checkpoint import CheckpointManager
    except ImportError:  # versions with the earlier name
        try:
            from cotswold.checkpoint import (  # type: ignore[attr-defined,no-redef]  # an older tree
                Checkpoints as CheckpointManager,
            )
        except ImportError:
            from cotswold.run import (  # type: ignore[attr-defined,no-redef]  # a still older tree
                Checkpoints as CheckpointManager,
            )
    folder = tempfile.TemporaryDirectory()
    kept = CheckpointManager(folder.name, keep=1)
    tensors = {f"tensor {number}": torch.randn(4 << 20) for number in range(4)}
    count = iter(range(10**9))

    def run() -> None:
        kept.save(next(count), tensors, {})
        found = kept.latest().checkpoint
        assert found is not None
        found.tensors()
        _ = folder  # deleted with the process

    return run


def command(grid: str) -> Callable[[], None]:
    """Return a function that makes a whole run by the command, start included."""
    folder = Path(tempfile.mkdtemp())
    (folder / "recipe.toml").write_text(RECIPE)
    count = iter(range(10**9))

    def run() -> None:
        words = ["train", str(folder / "recipe.toml"), "--run", str(folder / str(next(count)))]
        subprocess.run(
            [sys.executable, "-m", "cotswold", *words, "--stores", str(folder / "stores"), "--grid", grid],
            check=True,
            capture_output=True,
        )

    return run


def first_import() -> None:
    """Run `import cotswold` in a new interpreter."""
    subprocess.run([sys.executable, "-c", "import cotswold"], check=True)


CASES: dict[str, Callable[[], Callable[[], None]]] = {
    "import cotswold": lambda: first_import,
    "50 steps of a tiny stack": lambda: stack_step(4, 2, 14, 2, 8, 50),
    "10 steps of a small stack": lambda: stack_step(8, 4, 48, 4, 24, 10),
    "a step of a large stack": lambda: stack_step(10, 2, 96, 8, 96, 1),
    "an untied layer, forward and backward": local_layer,
    "64 MB to a checkpoint and back": checkpoint,
    "a whole run, one process": lambda: command("none"),
    "a whole run, two ranks": lambda: command("1x2"),
}


def serve(case: str) -> None:
    """Run the case for each line of input and print its seconds, in the process of one tree."""
    run = CASES[case]()
    run()  # warm-up
    for _ in sys.stdin:
        start = time.perf_counter()
        run()
        print(time.perf_counter() - start, flush=True)


class Tree:
    """One source tree, in a process that runs a case on request."""

    def __init__(self, source: Path, case: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", case],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self) -> float:
        """Return the time of one run."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compared(before: Path, after: Path, case: str, rounds: int) -> dict[str, object]:
    """Return the seconds of both trees, round by round, alternating which tree is first."""
    trees = Tree(before, case), Tree(after, case)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            times[which].append(trees[which].seconds())
    for tree in trees:
        tree.end()
    ratios = [b / a for a, b in zip(*times, strict=True)]
    return {
        "case": case,
        "before_seconds": median(times[0]),
        "before_quartiles": quantiles(times[0])[::2],
        "after_seconds": median(times[1]),
        "after_quartiles": quantiles(times[1])[::2],
        "after_over_before": median(ratios),
        "ratio_quartiles": quantiles(ratios)[::2],
    }


def main() -> None:
    """Compare, print a table, keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="the `src` of the older tree")
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[1] / "src", help="the newer one")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--case", action="append", choices=[*CASES], help="may be given again [all]")
    parser.add_argument("--out", type=Path, help="directory for before_after.json")
    parser.add_argument("--serve", choices=[*CASES], help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.serve:
        serve(words.serve)
        return
    if words.before is None or not (words.before / "cotswold").is_dir():
        parser.error(f"--before {words.before} has no package cotswold; give the src folder of a tree")
    found = []
    for case in words.case or CASES:
        found.append(compared(words.before.absolute(), words.after.absolute(), case, words.rounds))
        row = found[-1]
        print(
            f"{case:<40} {row['before_seconds']:>9.4f} s {row['after_seconds']:>9.4f} s"
            f"   {row['after_over_before']:.3f} of before",
            flush=True,
        )
    if words.out is not None:
        from cotswold.bench.measure import document

        told = "python benchmarks/before_after.py --before REVISION/src"
        kept = document("before and after", told, rounds=words.rounds, cases=found)
        words.out.mkdir(parents=True, exist_ok=True)
        (words.out / "before_after.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()

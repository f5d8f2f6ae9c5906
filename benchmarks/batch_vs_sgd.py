"""Conjugate gradient, L-BFGS and mini-batch SGD on the same patterns: seconds and FLOPs to a given error.

    python benchmarks/batch_vs_sgd.py [--recipe FILE] [--flops 1e12] [--error 0.04] [--threads 1]
        [--out benchmarks/results]

Trains each method on the same store with the same network and initial weights until it has used the FLOPs.
SGD runs at several learning rates, which are all shown. Every iteration or epoch ends with a validation,
whose time counts. Prints seconds and FLOPs to the given error on validation samples, and writes
batch-vs-sgd.json and batch-vs-sgd.svg. The default recipe is MNIST's digits under COTSWOLD_DATA, 784-100-10.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

RECIPE = """
name = "batch-vs-sgd"
data = { source = "${COTSWOLD_DATA}/mnist", labels = "file", size = 28, colour = "grey", \
per_image_standardise = false, whiten = false, dtype = "uint8", validation = 0.1 }
network = { layers = [{ type = "linear", features = 100 }, { type = "tanh" }] }
"""
WHOLE = {
    "L-BFGS, strong Wolfe": {"method": "lbfgs"},
    "CG Polak-Ribière+, strong Wolfe": {"method": "cg"},
    "CG Polak-Ribière+, Bunyip's search": {"method": "cg", "line_search": "bunyip"},
    "CG Hager-Zhang, approximate Wolfe": {
        "method": "cg",
        "beta": "hager-zhang",
        "line_search": "approximate",
    },
}
RATES = (0.02, 0.1, 0.5)


@dataclass(frozen=True)
class Curve:
    """Seconds, FLOPs, loss and error of a method at each validation."""

    seconds: list[float]
    flops: list[float]
    losses: list[float]
    errors: list[float]

    def first(self, error: float) -> tuple[float, float] | None:
        """Return seconds and FLOPs at the first validation with at most this error, or None."""
        for seconds, flops, found in zip(self.seconds, self.flops, self.errors, strict=True):
            if found <= error:
                return seconds, flops
        return None


def main() -> None:
    """Train all methods, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipe", type=Path)
    parser.add_argument("--flops", type=float, default=1e12)
    parser.add_argument("--error", type=float, default=0.04)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    text = RECIPE if given.recipe is None else given.recipe.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        curves = measured(text, Path(folder), given.flops, given.threads)
    print(f"{'method':44}{'seconds':>10}{'GFLOP':>10}   to {given.error:.1%} on validation; the least error")
    for name, curve in curves.items():
        found = curve.first(given.error)
        words = f"{'-':>10}{'-':>10}" if found is None else f"{found[0]:10.2f}{found[1] / 1e9:10.1f}"
        print(f"{name:44}{words}   {min(curve.errors):.2%}")
    given.out.mkdir(parents=True, exist_ok=True)
    written = {
        "processor": processor(),
        "threads": given.threads,
        "flops": given.flops,
        "error": given.error,
        "curves": {name: asdict(curve) for name, curve in curves.items()},
    }
    (given.out / "batch-vs-sgd.json").write_text(json.dumps(written, indent=1) + "\n")
    draw(curves, given.out / "batch-vs-sgd.svg")


def measured(text: str, folder: Path, flops: float, threads: int) -> dict[str, Curve]:
    """Return the curve of every method."""
    import cotswold

    curves = {}
    for number, (name, words) in enumerate(WHOLE.items()):
        table = {"strategy": "batch", "max_iterations": 100_000, "max_flops": flops, **words}
        (folder / "recipe.toml").write_text(text + training(table))
        run = cotswold.train_recipe(
            folder / "recipe.toml", folder / str(number), stores=folder / "stores", threads=threads
        )
        curves[name] = curve_of(run, None)
    samples = next(int(str(e["samples"])) for e in run.events if e["kind"] == "start")
    of_one = next(int(str(e["flops"])) / int(str(e["samples"])) for e in run.events if e["kind"] == "end")
    for rate in RATES:
        epochs = max(1.0, flops / (of_one * samples))
        table = {"strategy": "supervised", "learning_rate": rate, "epochs": epochs}
        (folder / "recipe.toml").write_text(text + training(table))
        run = cotswold.train_recipe(
            folder / "recipe.toml", folder / f"sgd-{rate}", stores=folder / "stores", threads=threads
        )
        curves[f"SGD, momentum 0.9, rate {rate:g}, batches of 96"] = curve_of(run, of_one * 96)
    return curves


def training(table: dict[str, object]) -> str:
    """Return `[training]` as TOML."""
    return "\n[training]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())


def curve_of(run: object, step_flops: float | None) -> Curve:
    """Return the validations of a run. ``step_flops``: FLOPs of a step, if events do not report FLOPs."""
    import cotswold

    assert isinstance(run, cotswold.Run)
    began = next(float(str(e["seconds"])) for e in run.events if e["kind"] == "start")
    found = [e for e in run.events if e["kind"] == "validation"]
    return Curve(
        [float(str(e["seconds"])) - began for e in found],
        [float(str(e["flops"])) if step_flops is None else step_flops * int(str(e["step"])) for e in found],
        [float(str(e["loss"])) for e in found],
        [1 - float(str(e["accuracy"])) for e in found],
    )


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Plot loss and error on validation samples against seconds and FLOPs, all methods in one figure."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), sharey="row", layout="constrained")
    for name, curve in curves.items():
        for row, values in zip(axes, (curve.losses, curve.errors), strict=True):
            for panel, at in zip(row, (curve.seconds, [each / 1e9 for each in curve.flops]), strict=True):
                panel.plot(at, values, label=name, linewidth=1.2)
                panel.set_yscale("log")
    axes[0][0].set_ylabel("validation loss")
    axes[1][0].set_ylabel("validation error")
    axes[1][0].set_xlabel("seconds")
    axes[1][1].set_xlabel("GFLOP")
    axes[0][1].legend(fontsize=7)
    figure.savefig(path)


def processor() -> str:
    """Return the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


if __name__ == "__main__":
    main()

"""Train and test the recipe `demo` with three seeds, and compare it with further k-means dictionaries.

    python benchmarks/demo.py FOLDER [--out benchmarks/results]

Writes demo.json: commit, machine, and for each seed the held-out accuracy of the best neuron, and the
accuracy of a classifier that learns from 1, 2, 5 and 10 labelled images of each class, on the features of
the network, of a k-means dictionary in its last stack, of random filters, and on pixels (`cotswold
evaluate`). Two more baselines learn from the same training images without this network: k-means
dictionaries in all three stacks, one after another, and one dictionary of 256 whole images. Results that
are in FOLDER already are not computed again.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from cotswold import analysis, training
from cotswold.analysis.selectivity.few_label_results import LabelCurve
from cotswold.bench.measure import document
from cotswold.cli.support.tables import table, write_result
from cotswold.data import as_image_transform, open_source
from cotswold.nn import StackNetwork
from cotswold.recipe import load
from cotswold.run import RunDirectory
from lib.command import Json, command, main

SEEDS = (0, 1, 2)
FLAT = (
    "network.stacks=[{kernel_size=48,block=16,channels=1,pool=1,norm=5,pool_padding='same'}]",
    "name=flat",
)
"""Settings of `demo` for one stack of 256 filters, each of the size of the image."""


def cotswold(*words: str) -> str:
    """Return the output of a command."""
    command = [sys.executable, "-m", "cotswold.cli.main", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def figures(curve: LabelCurve) -> dict[str, Any]:
    """Return the layer of a curve, and mean and standard deviation for each number of labels."""
    means, spreads = ([round(each, 4) for each in values] for values in (curve.means, curve.spreads))
    return {"layer": curve.layer, "mean": means, "spread": spreads}


def dictionaries(folder: Path, stores: Path) -> dict[str, dict[str, Any]]:
    """Return the accuracies of k-means in all stacks, and of one dictionary of whole images."""
    run = RunDirectory.open(folder)
    recipe, trained = load(run.recipe), training.trained_stacks(run)
    store = training.store_of(run, stores=stores, progress=lambda done, total: None)
    test = recipe.evaluate[0]
    images = analysis.ObjectTestSet(
        open_source(test.positives),
        open_source(test.negatives),
        as_image_transform(trained.prepared.transform),
    )

    def unlabelled() -> Any:
        return training.training_maps(store, recipe, None)

    found = {}
    for name, settings in (("k-means in all stacks", ()), ("k-means of whole images", FLAT)):
        random = training.random_stacks(load("demo", settings), next(iter(unlabelled())))
        stacks: list[Any] = []
        for stack in random.stacks:
            network, _ = analysis.kmeans_network(StackNetwork([*stacks, copy.deepcopy(stack)]), unlabelled)
            stacks = list(network.stacks)
        layers = [*analysis.top_layers(network, "pooled"), *analysis.top_layers(network, "output")]
        wanted = analysis.FewLabelSettings(test.few_labels, layers)
        few = analysis.few_labels(network, analysis.Baselines(), images, wanted)
        found[name] = figures(few.best_curves["this network"])
    return found


def seed_result(folder: Path, seed: int) -> dict[str, Any]:
    """Return the results of a seed."""
    run, stores = folder / f"demo-{seed}", folder / "stores"
    kept = run / "baselines.json"
    words = ("--run", str(run), "--stores", str(stores), "--grid", "1x2", "--resume-if-started")
    cotswold("train", "demo", *words, "--set", f"training.seed={seed}")
    cotswold("evaluate", str(run), "--stores", str(stores))
    evaluation = analysis.Evaluation.read(RunDirectory.open(run).evaluation)
    assert evaluation is not None
    row = evaluation.objects[0]
    few = row.few_labels
    assert few is not None
    if not kept.exists():
        kept.write_text(json.dumps(dictionaries(run, stores)))
    best = {
        origin: {"layer": layer.layer, "held_out": round(layer.held_out, 4)}
        for origin, layer in row.best_layers.items()
    }
    curves = {origin: figures(curve) for origin, curve in few.best_curves.items()}
    return {
        "seed": seed,
        "best_neuron": best,
        "labels": few.labels,
        "draws": few.draws,
        "few_labels": {**curves, **json.loads(kept.read_text())},
        "every_layer": [{"of": curve.origin, **figures(curve)} for curve in few.curves],
        "sentences": few.sentences(row.name),
    }


def demo(folder: Path, *, out: Path = Path(__file__).parent / "results", json_: Json = False) -> None:
    """Train and test the recipe `demo` with three seeds, and compare it with further k-means dictionaries.

    Parameters
    ----------
    folder
        Directory of runs and stores; results that it has are not computed again.
    out
        Directory for demo.json.
    json_
        Print JSON.
    """
    results = [seed_result(folder, seed) for seed in SEEDS]
    summary = {
        name: [
            round(fmean(result["few_labels"][name]["mean"][index] for result in results), 4)
            for index in range(len(results[0]["labels"]))
        ]
        for name in results[0]["few_labels"]
    }
    labels = results[0]["labels"]
    found = document("demo", command(), labels=labels, accuracy_mean_of_seeds=summary, seeds=results)
    write_result(found, "demo", out, json_)
    if not json_:
        heads = [f"{each} label{'s' * (each > 1)}" for each in labels]
        means = [{"features of": name, **dict(zip(heads, row, strict=True))} for name, row in summary.items()]
        table("mean accuracy of the seeds", means)


if __name__ == "__main__":
    main(demo)

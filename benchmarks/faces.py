"""Train and test `faces` and its control with three seeds (Coates et al. 2013, section 5.2).

    COTSWOLD_DATA=... python benchmarks/faces.py FOLDER [--out benchmarks/results]

Writes faces.json: the processor, seconds of training on one thread, the decrease of every stack's held-out
objective. For each seed and object it has the held-out accuracy of the best neuron of every stack, compared
with random filters, k-means and the control, which is tested on separately prepared images. It also has the
origin of the k-means dictionary, and the correlation of the best face neuron's stimulus with the mean face.
Results that are in FOLDER already are not computed again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean

SEEDS = (1, 2, 3)
RIVALS = ("network", "random", "dictionary", "control")


def cotswold(*words: str) -> str:
    """Return the output of a command."""
    command = [sys.executable, "-m", "cotswold.cli.main", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def trained(recipe: str, folder: Path, seed: int) -> tuple[Path, dict[str, object]]:
    """Return a run, its seconds, and the decrease of every stack's objective on held-out images."""
    run = folder / f"{recipe}-{seed}"
    where = ("--run", str(run), "--stores", str(folder / "stores"), "--resume-if-started")
    cotswold("train", recipe, *where, "--set", f"training.seed={seed}", "--set", "training.threads=1")
    losses: dict[int, list[float]] = {}
    seconds = 0.0
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "validation":
            losses.setdefault(event["phase"], []).append(event["loss"])
        elif event["kind"] == "end":
            seconds = event["training_seconds"]
    return run, {"seconds": seconds, "fall": [1 - curve[-1] / curve[0] for curve in losses.values()]}


def main(folder: Path, results_folder: Path) -> None:
    """Train, test, write."""
    results = []
    for seed in SEEDS:
        run, facts = trained("faces", folder, seed)
        control, _ = trained("faces-control", folder, seed)
        words = ("--control", str(control), "--stores", str(folder / "stores"), "--json")
        found = json.loads(cotswold("evaluate", str(run), *words))
        objects = {
            row["name"]: {
                **{who: {layer["layer"]: layer["held_out"] for layer in row[who]} for who in RIVALS},
                "clustering": row["clustering"],
                "stimulus_correlation": row["portraits"][0]["correlation"],
                "stimulus_percentile_in_layer": row["portraits"][0]["percentile"],
                "stimulus_percentile_among_random_filters": row["portraits"][0]["percentile_random"],
            }
            for row in found["objects"]
        }
        results.append({"seed": seed, **facts, "objects": objects})
    top = "3.output"
    summary = {
        name: {
            who: mean(result["objects"][name][who][top] for result in results)  # type: ignore[index]  # JSON
            for who in RIVALS
        }
        for name in ("faces", "cats", "upper bodies")
    }
    results_folder.mkdir(parents=True, exist_ok=True)
    out = results_folder / "faces.json"
    written = {
        "command": "python benchmarks/faces.py FOLDER",
        "processor": json.loads((run / "environment.json").read_text())["processor"],
        "threads": 1,
        "held_out_of_the_last_stack": summary,
        "seeds": results,
    }
    out.write_text(json.dumps(written, indent=1))
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="directory of runs and stores")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="directory for faces.json"
    )
    given = parser.parse_args()
    main(given.folder, given.out)

"""Staleness and accuracy: 1 to 1,000 replicas, simulated event by event with real gradients.

Knows: the command's options, the order of the cells, the comparison. Does not know: how replicas are
simulated.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from cyclopts import Parameter

from cotswold import recipe as recipes
from cotswold.bench.measure import Document, rounded
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.paramserver.core.replica_session import Pace
from cotswold.training import open_store
from lib.cells import Cells, Plan
from lib.command import Flag, Json, main, rows
from lib.downpour.plots import draw_staleness
from lib.downpour.simulation import RULES, SimulatedRun
from lib.mnist import source
from lib.simulated_replicas import Learning, Machines

RECIPE = """
name = "mnist-784-100-10"
data = {{ source = "{source}", labels = "file", splits = "folders", validation = 0.1, size = 28, \
colour = "grey", whiten = false }}
network = {{ layers = [{{ type = "linear", features = 100 }}, {{ type = "tanh" }}] }}
training = {{ strategy = "downpour", batch_size = 10, learning_rate = 0.1 }}
"""
REPLICAS = [1, 4, 16, 64, 256, 1000]
RATES = {
    "sgd": [0.4, 0.1, 0.025, 0.00625, 0.0015625],
    "momentum": [0.1, 0.025, 0.00625, 0.0015625, 0.000390625],
    "adagrad": [0.32, 0.08, 0.02, 0.005, 0.00125],
}
"""Five rates for each rule, a factor of four apart."""
TUNING_SEED = 1_000
POINTS = 0.01
"""Loss of accuracy relative to one replica beyond which replicas no longer work productively."""
Numbers = Annotated[list[int] | None, Parameter(negative=())]


def staleness(
    recipe: str | None = None,
    *,
    replicas: Numbers = None,
    rule: Annotated[list[str] | None, Parameter(negative=())] = None,
    epochs: float = 4.0,
    seeds: int = 3,
    pull_every: int = 1,
    push_every: int = 1,
    no_overlap: Flag = False,
    warm_start: float = 0.0,
    speeds: float = 0.3,
    jitter: float = 0.1,
    travel: float = 0.1,
    minutes: float = 60.0,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Measure accuracy after equal samples by number of replicas, with SGD, momentum and Adagrad on the
    servers.

    Each replica computes a real gradient at the parameters that it pulled at its simulated time. Pushes are
    applied in order of arrival. Seconds per step are log-normal, drawn for each replica and again for each
    step. For every rule and number of replicas the rate is tuned on validation samples: one run for each of
    five rates, a factor of four apart. The best rate then runs with other seeds and is evaluated on test
    samples. A cell is one run; each is kept when it is finished, and the same command resumes. The default is
    MNIST's digits, 784-100-10, batches of 10; a run takes about 15 s.

    Example: python benchmarks/staleness.py --minutes 60

    Parameters
    ----------
    recipe
        Recipe with labels, which also gives the batch size.
    replicas
        Number of replicas; may be given again [1, 4, 16, 64, 256 and 1000].
    rule
        sgd, momentum or adagrad; may be given again [all].
    epochs
        Passes over the training samples, summed over replicas.
    seeds
        Runs at the best rate.
    pull_every
        Steps between pulls.
    push_every
        Steps whose gradients are summed for a push.
    no_overlap
        Let a replica wait for its push and its pull before the next step.
    warm_start
        Epochs that one replica learns alone first.
    speeds
        Sigma of the logarithms of replicas' seconds per step; 0 for equal replicas.
    jitter
        Sigma of the logarithms of one replica's steps.
    travel
        Time of a message one way, in median steps.
    minutes
        Minutes after which no cell may end; a cell that would take longer does not start.
    stores
        Directory of prepared samples.
    out
        Directory for staleness.json (the finished cells) and staleness.svg.
    json_
        Print JSON.
    """
    text = RECIPE.format(source=source(stores)) if recipe is None else None
    overrides = ["training.strategy=downpour", "training.epochs=1"]
    read = recipes.parse(text) if text is not None else recipes.load(str(recipe), overrides)
    rules = [name for name in RULES if rule is None or name in rule]
    require_positive(min(len(rules), seeds), "--rule" if not rules else "--seeds")
    paces = {"pull_every": pull_every, "push_every": push_every, "no_overlap": no_overlap}
    times = {"speeds": speeds, "jitter": jitter, "travel": travel}
    settings = {"epochs": epochs, "warm_start": warm_start, **paces, **times}
    cells = Cells("staleness", out, minutes, summary, recipe=read.name, rates=RATES, **settings)
    store = open_store(read, stores)
    pace = Pace(read.training.batch_size, pull_every, push_every, not no_overlap)
    count = store.splits["train"]

    with TemporaryDirectory() as folder:
        simulating = SimulatedRun(read, store, Path(folder))

        def cell(name: str, number: int, rate: float, seed: int) -> Document:
            machines = Machines(number, 1.0, speeds, jitter, travel, seed=seed)
            warm = round(warm_start * count)
            return simulating.cell(
                machines, Learning(pace, rate, round(epochs * count), RULES[name], warm, seed)
            )

        def plan() -> Plan:
            for number in replicas or REPLICAS:
                for name in rules:
                    for rate in RATES[name]:
                        key = f"tune, {name}, {number}, {rate:g}"
                        yield key, partial(cell, name, number, rate, TUNING_SEED)
                    best = tuned(cells.found, name, number)
                    for seed in range(seeds):
                        yield f"{name}, {number}, {seed}", partial(cell, name, number, best, seed)

        cells.run(plan())
    found = cells.leave()
    write_result(found, "staleness", None, json_)
    told: Any = found["summary"]
    draw_staleness(told, read.name, out)
    if not json_ and told["rows"]:
        table(f"{read.name}: accuracy after {epochs:g} epochs", rows(told["rows"]))
        print("largest number of replicas that work productively:", told["productive"])


def tuned(cells: dict[str, Document], rule: str, replicas: int) -> float:
    """Return the rate with the best validation accuracy; of equal ones, the smaller."""
    own = [cell for key, cell in cells.items() if key.startswith(f"tune, {rule}, {replicas},")]
    best: Any = max(own, key=lambda cell: (cell["validation"], -float(str(cell["rate"]))))
    return float(best["rate"])


def summary(cells: dict[str, Document]) -> Document:
    """Return each rule and number of replicas at its best rate, and the largest productive number of
    replicas: the mean accuracy is within a point of that of one replica."""
    own: dict[tuple[str, int], list[Any]] = {}
    for key, cell in cells.items():
        if not key.startswith("tune"):
            rule, replicas, _ = key.split(", ")
            own.setdefault((rule, int(replicas)), []).append(cell)
    found: list[Any] = [
        {
            "rule": rule,
            "replicas": replicas,
            "rate": runs[0]["rate"],
            "staleness": rounded(mean(run["staleness"] for run in runs)),
            "validation": rounded(mean(run["validation"] for run in runs)),
            "test": rounded(mean(run.get("test", run["validation"]) for run in runs)),
            "least": min(run.get("test", run["validation"]) for run in runs),
            "seeds": len(runs),
        }
        for (rule, replicas), runs in own.items()
    ]
    return {"rows": found, "points": POINTS, "productive": _productive(found)}


def _productive(found: list[Any]) -> dict[str, int]:
    most: dict[str, int] = {}
    for rule in RULES:
        of = {row["replicas"]: row["test"] for row in found if row["rule"] == rule}
        if not of:
            continue
        bar = of[min(of)] - POINTS
        for replicas in sorted(of):
            if of[replicas] < bar:
                break
            most[rule] = replicas
    return most


if __name__ == "__main__":
    main(staleness)

"""Staleness and accuracy: 1 to 1,000 replicas, simulated event by event with real gradients.

Knows: the words of the command, which cell comes when, what is compared. Does not know: how replicas are
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
from lib.downpour.simulation import RULES, Simulating
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
"""Five each, a factor of four apart."""
TUNING_SEED = 1_000
POINTS = 0.01
"""So much below one replica's accuracy, all together no longer work productively."""
Numbers = Annotated[list[int] | None, Parameter(negative=())]


def staleness(
    recipe: str | None = None,
    *,
    replicas: Numbers = None,
    rule: Annotated[list[str] | None, Parameter(negative=())] = None,
    epochs: float = 4.0,
    seeds: int = 3,
    fetch_every: int = 1,
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
    """Accuracy after equal samples against the number of replicas: SGD, momentum and Adagrad on the servers.

    Each replica computes a real gradient at the parameters that it had pulled at its simulated time; pushes
    are applied in the order in which they arrive. Seconds a step are drawn for each replica, and again for
    each step, log-normally. For every rule and number of replicas the rate is tuned on validation samples:
    one run a rate, five rates a factor of four apart. The best one is then run with other seeds and judged on
    test samples. A cell is one run; each is kept when it is finished; the same command goes on. By default
    MNIST's digits, 784-100-10, batches of 10; a run takes some 15 s.

    Example: python benchmarks/staleness.py --minutes 60

    Parameters
    ----------
    recipe
        A recipe with labels, whose batch size is taken.
    replicas
        How many; 1, 4, 16, 64, 256 and 1000 by default. May be given again.
    rule
        sgd, momentum or adagrad; all by default. May be given again.
    epochs
        Passes over the training samples, of all replicas together.
    seeds
        Runs at the best rate.
    fetch_every
        Steps between pulls.
    push_every
        Steps whose gradients are added up for a push.
    no_overlap
        A replica waits for its push and its pull before the next step.
    warm_start
        Epochs that one replica learns by itself first.
    speeds
        Sigma of the logarithms of replicas' seconds a step; 0 for equal replicas.
    jitter
        The same, of one replica's steps.
    travel
        What a message takes one way, in median steps.
    minutes
        No cell begins that would end later.
    stores
        Where samples are prepared.
    out
        A directory for staleness.json, which has the finished cells, and staleness.svg.
    json_
        Print JSON.
    """
    text = RECIPE.format(source=source(stores)) if recipe is None else None
    overrides = ["training.strategy=downpour", "training.epochs=1"]
    read = recipes.parse(text) if text is not None else recipes.load(str(recipe), overrides)
    rules = [name for name in RULES if rule is None or name in rule]
    require_positive(min(len(rules), seeds), "--rule" if not rules else "--seeds")
    paces = {"fetch_every": fetch_every, "push_every": push_every, "no_overlap": no_overlap}
    times = {"speeds": speeds, "jitter": jitter, "travel": travel}
    settings = {"epochs": epochs, "warm_start": warm_start, **paces, **times}
    cells = Cells("staleness", out, minutes, summary, recipe=read.name, rates=RATES, **settings)
    store = open_store(read, stores)
    pace = Pace(read.training.batch_size, fetch_every, push_every, not no_overlap)
    count = store.splits["train"]

    with TemporaryDirectory() as folder:
        simulating = Simulating(read, store, Path(folder))

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
        print("replicas that work productively, at most:", told["productive"])


def tuned(cells: dict[str, Document], rule: str, replicas: int) -> float:
    """The rate with the best validation accuracy; the smaller of two that are as good."""
    own = [cell for key, cell in cells.items() if key.startswith(f"tune, {rule}, {replicas},")]
    best: Any = max(own, key=lambda cell: (cell["validation"], -float(str(cell["rate"]))))
    return float(best["rate"])


def summary(cells: dict[str, Document]) -> Document:
    """Each rule and number of replicas at its best rate; up to how many replicas a rule works productively:
    the mean accuracy is within a point of that of one replica."""
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

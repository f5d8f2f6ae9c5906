"""Processes that learn on one copy of the weights, compared with isolated processes and PyTorch's Hogwild.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path

from cotswold import recipe as recipes
from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.training import open_store
from cotswold.training.strategies.supervised import supervised_training
from lib.command import Json, check_unvaried, command, main, rows, spreads
from lib.hogwild import measured
from lib.hogwild_training import Steps


def hogwild(
    recipe: str = "adam-mnist",
    *,
    processes: int = 2,
    samples: int = 20_000,
    accuracy_samples: int = 0,
    rate: float = 0.1,
    rounds: int = 5,
    seeds: int = 1,
    stores: Path = Path("stores"),
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure samples per second of processes that share weights without locks, and accuracy after equal
    samples.

    Example: python benchmarks/hogwild.py --rounds 5 --accuracy-samples 162000

    Parameters
    ----------
    recipe
        Recipe with labels.
    processes
        Number of processes, one thread each.
    samples
        Samples of all processes together, in each round of the speeds.
    accuracy_samples
        Samples after which the accuracy is compared with that of one process; 0 for no comparison.
    rate
        Learning rate of plain steps; in the comparison of accuracies it decays to 0 by a cosine.
    rounds
        Rounds for each speed.
    seeds
        Number of orders of samples for which accuracy is compared.
    stores
        Directory of prepared samples.
    out
        Directory for hogwild.json.
    json_
        Print JSON.
    """
    read = recipes.load(recipe)
    check_unvaried(read, "a method compared here")
    batch = supervised_training(read).batch_size
    steps = Steps(samples, batch, rate)
    accurate = Steps(accuracy_samples, batch, rate, "cosine") if accuracy_samples else None
    for each in (steps, accurate):
        if each is not None:
            each.count(require_positive(processes, "--processes"))
    found = document(
        "hogwild",
        command(),
        recipe=read.name,
        **measured(
            read,
            open_store(read, stores),
            steps,
            accurate,
            processes,
            require_positive(rounds, "--rounds"),
            require_positive(seeds, "--seeds"),
        ),
    )
    write_result(found, "hogwild", out, json_)
    if json_:
        return
    spreads("samples per second", found["spread_samples_a_second"])
    for name, ratio in dict(found["ratio"]).items():  # type: ignore[call-overload]  # a table of JSON
        print(f"{ratio} of {name}")
    if accurate is not None:
        table("accuracy", rows(dict(found["accuracy"])["rows"]))  # type: ignore[call-overload]  # the same


if __name__ == "__main__":
    main(hogwild)

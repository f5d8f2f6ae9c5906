"""Processes that learn on one copy of the weights: beside processes that only compute, and PyTorch's Hogwild.

Knows: the words of the command, tables, where results go. Does not know: how anything is measured.
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
    """Samples a second of processes that share weights without locks, and accuracy after equal samples.

    Example: python benchmarks/hogwild.py --rounds 5 --accuracy-samples 162000

    Parameters
    ----------
    recipe
        A recipe with labels.
    processes
        How many, one thread each.
    samples
        Of all processes together, in each round of the speeds.
    accuracy_samples
        After so many samples accuracy is compared with one process's; 0 for not at all.
    rate
        Learning rate of plain steps; the accuracies' falls to 0 by a cosine.
    rounds
        How many times each speed.
    seeds
        Orders of samples by which accuracy is compared.
    stores
        Where samples are prepared.
    out
        A directory for hogwild.json.
    json_
        Print JSON.
    """
    read = recipes.load(recipe)
    check_unvaried(read, "one of these rivals")
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
    spreads("samples a second", found["spread_samples_a_second"])
    for name, ratio in dict(found["ratio"]).items():  # type: ignore[call-overload]  # a table of JSON
        print(f"{ratio} of {name}")
    if accurate is not None:
        table("accuracy", rows(dict(found["accuracy"])["rows"]))  # type: ignore[call-overload]  # the same


if __name__ == "__main__":
    main(hogwild)

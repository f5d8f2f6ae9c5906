"""The training loop compared with its operations, and the peak memory of a step.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.api.threads import threads_override, use_threads
from cotswold.bench.measure import document
from cotswold.cli.support.tables import table, write_result
from cotswold.recipe import load
from cotswold.training import open_store
from cotswold.ui.terminal import progress_bar, write_message
from cotswold.ui.training_display import TrainingDisplay
from lib.command import Json, Overrides, check_stacks, command, listed, main, rows
from lib.training.loop import loop_share
from lib.training.peak_memory import peaks


def training(
    recipe: str = "demo",
    *,
    set: Overrides = None,
    stores: Path = Path("stores"),
    threads: int | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure the time that the training loop adds to its operations, and the peak memory of a step.

    The whole recipe is trained in a temporary directory. Examples:

      python benchmarks/training.py
      python benchmarks/training.py faces --set training.epochs=0.5 --out benchmarks/results

    Parameters
    ----------
    recipe
        Recipe file or name of a shipped recipe, with stacks.
    set
        Override a field, as in training.epochs=0.5; may be given again.
    stores
        Directory of prepared images, which are made if they do not exist.
    threads
        Threads of computation [the recipe's number, or all cores granted to this process].
    out
        Directory for training.json.
    json_
        Print JSON.
    """
    overrides = [*(set or []), *threads_override(threads)]
    chosen = load(recipe, overrides, write_message)
    check_stacks(chosen)
    use_threads(None, chosen)
    with progress_bar("preparing", "images") as advance:
        open_store(chosen, stores, advance)
    memory = peaks(chosen)
    with TrainingDisplay() as display:
        loop = loop_share(recipe, overrides, stores, display)
    found = document("training", command(), recipe=recipe, loop=loop, memory=memory)
    write_result(found, "training", out, json_)
    if not json_:
        listed({name: value for name, value in loop.items() if name != "stacks"})
        table("a step in the loop and alone", rows(loop["stacks"]))
        table("peak memory of a step", memory)


if __name__ == "__main__":
    main(training)

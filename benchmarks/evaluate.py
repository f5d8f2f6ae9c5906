"""The passes of the selectivity test, compared with the forward pass alone.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cotswold.api.threads import use_threads
from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, write_result
from cotswold.recipe import load
from lib.command import Json, Overrides, check_stacks, command, main, spreads
from lib.passes import evaluation_passes


def evaluate(
    recipe: str = "demo",
    *,
    set: Overrides = None,
    part: Literal["filters", "pooled", "output"] = "output",
    images: int = 4000,
    rounds: int = 7,
    threads: int | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure the rate of each pass of the selectivity test, compared with the forward pass alone.

    The images are random; the recipe's stacks have random filters. Examples:

      python benchmarks/evaluate.py
      python benchmarks/evaluate.py faces --part pooled --out benchmarks/results

    Parameters
    ----------
    recipe
        Recipe file or name of a shipped recipe, with stacks.
    set
        Override a field, as in training.batch_size=50; may be given again.
    part
        Tested map of every stack.
    images
        Number of images.
    rounds
        Rounds for each pass.
    threads
        Threads of computation [the recipe's number, or all cores granted to this process].
    out
        Directory for evaluate.json.
    json_
        Print JSON.
    """
    chosen = load(recipe, set or [])
    check_stacks(chosen)
    use_threads(threads, chosen)
    measured = evaluation_passes(
        chosen, part, require_positive(images, "--images"), require_positive(rounds, "--rounds")
    )
    found = document("evaluate", command(), **measured)
    write_result(found, "evaluate", out, json_)
    if not json_:
        spreads("images per second", found["samples_per_second"])
        spreads("fraction of the forward pass alone", found["of_forward"])


if __name__ == "__main__":
    main(evaluate)

"""A stack larger than its memory, trained from disk.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cotswold.api.threads import use_threads
from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, write_result
from cotswold.recipe import load
from cotswold.ui.terminal import write_message
from lib.command import Flag, Json, Overrides, check_stacks, command, listed, main
from lib.offload.measure import SHARE, OffloadCase, largest_rows, part_of
from lib.offload.measure import offload as measured


def offload(
    recipe: str = "coates2013-11b",
    *,
    set: Overrides = None,
    stack: int = 1,
    rows: int | None = None,
    batch: int = 16,
    limit: float | None = None,
    largest: Flag = False,
    rounds: int = 5,
    folder: Path = Path(),
    threads: int | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure an update of a stack larger than its memory, compared with its computation and the disk's rate.

    A process with limited memory (by a control group, which needs root) trains the stack from disk. The limit
    is a quarter of filters and momentum. Examples:

      python benchmarks/offload.py
      python benchmarks/offload.py --stack 2 --rows 12 --batch 96 --limit 12
      python benchmarks/offload.py --stack 2 --batch 96 --largest --rounds 1

    Parameters
    ----------
    recipe
        Recipe file or name of a shipped recipe, with stacks.
    set
        Override a field; may be given again.
    stack
        Number of the stack, from 1 at the input.
    rows
        Number of rows of blocks, from the first [all].
    batch
        Images in a mini-batch.
    limit
        GB of memory [a quarter of filters and momentum].
    largest
        Use as many rows of blocks as the disk holds twice, without a limit, and save a checkpoint.
    rounds
        Number of timed updates, after one warm-up.
    folder
        Directory of the temporary files [the current directory].
    threads
        Threads of computation [the recipe's number, or all cores granted to this process].
    out
        Directory for offload.json.
    json_
        Print JSON.
    """
    chosen = load(recipe, set or [])
    check_stacks(chosen)
    use_threads(threads, chosen)
    geometry = part_of(chosen, stack, largest_rows(chosen, stack, folder, 2) if largest else rows)
    case = OffloadCase(
        geometry,
        require_positive(batch, "--batch"),
        None,
        require_positive(rounds, "--rounds"),
        saved=largest,
    )
    if not largest:
        gigabytes = limit if limit is not None else case.stack_bytes / SHARE / 1e9
        case = replace(case, limit_bytes=int(gigabytes * 1e9))
    found = document(
        "offload", command(), recipe=recipe, stack=stack, **measured(case, folder, write_message)
    )
    write_result(found, "offload-largest" if largest else "offload", out, json_)
    if not json_:
        listed({name: value for name, value in found.items() if name not in ("machine", "load")})


if __name__ == "__main__":
    main(offload)

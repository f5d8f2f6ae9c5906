"""A stack that is larger than its memory, trained from the disk.

Knows: the words of the command, tables, where results go. Does not know: how anything is measured.
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
    """An update of a stack that is larger than its memory, beside its computing and the disk's own rate.

    The stack is trained from the disk by a process whose memory is limited (by a control group, for which
    one must be root), to a quarter of filters and momentum. Examples:

      python benchmarks/offload.py
      python benchmarks/offload.py --stack 2 --rows 12 --batch 96 --limit 12
      python benchmarks/offload.py --stack 2 --batch 96 --largest --rounds 1

    Parameters
    ----------
    recipe
        A recipe file or the name of a shipped recipe, with stacks.
    set
        Overrides a field; may be given again.
    stack
        Which stack, from 1 at the input.
    rows
        Only its first so many rows of blocks.
    batch
        Images in a mini-batch.
    limit
        GB of memory; a quarter of filters and momentum by default.
    largest
        As many rows of blocks as the disk holds twice, without a limit, and a checkpoint of them.
    rounds
        How many updates are timed, after one that does not count.
    folder
        Where the files are while it lasts; the directory in which you are by default.
    threads
        Threads of computation; the recipe's number, or all cores that this process is granted, by default.
    out
        A directory for offload.json.
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

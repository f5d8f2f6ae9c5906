"""`cotswold prepare` beside Pillow alone.

Knows: the words of the command, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.bench.measure import document
from cotswold.cli.support.tables import cores, require_positive, write_result
from cotswold.data import open_source
from cotswold.ui.terminal import progress_bar
from lib.command import Json, command, main, spreads
from lib.preparation import preparing


def prepare(
    source: str,
    *,
    size: int = 48,
    jobs: int | None = None,
    limit: int | None = None,
    rounds: int = 3,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """The rate of `prepare` beside Pillow alone, which decodes and resizes the same files.

    As many processes for both, their start included. Example:

      python benchmarks/prepare.py photographs.zip --size 96 --jobs 2

    Parameters
    ----------
    source
        A source of images, as for `cotswold prepare`.
    size
        Height and width in pixels.
    jobs
        Processes; all cores by default.
    limit
        Read at most so many images.
    rounds
        How many times each, after one that does not count.
    out
        A directory for prepare.json.
    json_
        Print JSON.
    """
    with progress_bar("measuring", "rounds") as advance:
        measured = preparing(
            open_source(source),
            (require_positive(size, "--size"),) * 2,
            cores() if jobs is None else require_positive(jobs, "--jobs"),
            limit,
            require_positive(rounds, "--rounds"),
            advance,
        )
    found = document("prepare", command(), **measured)
    write_result(found, "prepare", out, json_)
    if not json_:
        spreads("images a second", found["samples_per_second"])
        spreads("prepare", {"of Pillow alone": found["of_pillow"]})


if __name__ == "__main__":
    main(prepare)

"""`cotswold prepare` compared with Pillow alone.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.api.ranks import cores
from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, write_result
from cotswold.data import open_source
from cotswold.ui.terminal import progress_bar
from lib.command import Json, command, main, spreads
from lib.preparation import preparation_rates


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
    """Measure the rate of `prepare`, compared with Pillow alone, which decodes and resizes the same files.

    Both use as many processes, including their start. Example:

      python benchmarks/prepare.py photographs.zip --size 96 --jobs 2

    Parameters
    ----------
    source
        Source of images, as for `cotswold prepare`.
    size
        Height and width in pixels.
    jobs
        Number of processes [one per core].
    limit
        Largest number of images to read.
    rounds
        Measured repetitions of each, after one warm-up.
    out
        Directory for prepare.json.
    json_
        Print JSON.
    """
    with progress_bar("measuring", "rounds") as advance:
        measured = preparation_rates(
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
        spreads("images per second", found["samples_per_second"])
        spreads("prepare", {"fraction of Pillow alone": found["of_pillow"]})


if __name__ == "__main__":
    main(prepare)

"""The block store of a parameter server, compared with a plain file on the same disk.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, write_result
from cotswold.ui.terminal import progress_bar
from lib.block_writing import block_writing
from lib.command import Json, command, main, spreads


def block_store(
    folder: Path,
    *,
    mib: int = 512,
    block_kib: int = 1024,
    group_mib: int = 32,
    rounds: int = 7,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure the rate of durable writes of blocks, compared with a plain file written in order and synced.

    Both write the same amount and sync after each group. Example:

      python benchmarks/block_store.py /var/tmp --out benchmarks/results

    Parameters
    ----------
    folder
        Folder on the measured disk; a temporary folder is made in it and removed.
    mib
        MiB written per round.
    block_kib
        KiB per block.
    group_mib
        MiB per group, which the flusher writes at once.
    rounds
        Measured repetitions of each, after one warm-up.
    out
        Directory for block-store.json.
    json_
        Print JSON.
    """
    with progress_bar("measuring", "rounds") as advance:
        measured = block_writing(
            folder,
            require_positive(mib, "--mib") << 20,
            require_positive(block_kib, "--block-kib") << 10,
            require_positive(group_mib, "--group-mib") << 20,
            require_positive(rounds, "--rounds"),
            advance,
        )
    found = document("block-store", command(), **measured)
    write_result(found, "block-store", out, json_)
    if not json_:
        spreads("MiB per second", found["mib_per_second"])
        spreads("fraction of the file's rate", found["of_file"])


if __name__ == "__main__":
    main(block_store)

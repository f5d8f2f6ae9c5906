"""The block store of a parameter server beside a plain file on the same disk.

Knows: the words of the command, tables, where results go. Does not know: how anything is measured.
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
    """The rate at which blocks are on disk, beside a plain file that is written in order and synced.

    Both write as much and sync after each group. Example:

      python benchmarks/block_store.py /var/tmp --out benchmarks/results

    Parameters
    ----------
    folder
        Where a folder is made, and removed, on the disk that is measured.
    mib
        MiB written in a round.
    block_kib
        KiB of a block.
    group_mib
        MiB of a group: what the flusher writes at once.
    rounds
        How many times each, after one that does not count.
    out
        A directory for block-store.json.
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
        spreads("MiB a second", found["mib_per_second"])
        spreads("of the file's rate", found["of_file"])


if __name__ == "__main__":
    main(block_store)

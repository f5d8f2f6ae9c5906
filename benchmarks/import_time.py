"""Start-up time of the library and the command.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, write_result
from lib.command import Json, command, main, spreads
from lib.import_time import import_times


def import_time(*, rounds: int = 15, out: Path | None = None, json_: Json = False) -> None:
    """Measure the time of `import cotswold` and `cotswold --help`.

    Example: python benchmarks/import_time.py

    Parameters
    ----------
    rounds
        Rounds for each.
    out
        Directory for import-time.json.
    json_
        Print JSON.
    """
    found = document("import-time", command(), **import_times(require_positive(rounds, "--rounds")))
    write_result(found, "import-time", out, json_)
    if not json_:
        spreads("seconds", found["spread_seconds"])
        print(f"import cotswold imports torch: {'yes' if found['imports_torch'] else 'no'}")


if __name__ == "__main__":
    main(import_time)

"""`cotswold report`.

Knows: the words of the command. Does not know: what is on the page.
"""

from __future__ import annotations

from pathlib import Path


def report(run: Path, *, threads: int | None = None) -> None:
    """Write a run's report, one HTML page without outside resources, and print where it is.

    Works while training goes on. What is damaged is left out, and named on the page.

    Examples:

      cotswold report runs/demo
      cotswold report demo/run

    Parameters
    ----------
    run
        The run's directory.
    threads
        Threads of computation; the run's own number, or all cores that this process is granted, by default.
    """
    import cotswold

    print(cotswold.report(run, threads=threads, progress=True))

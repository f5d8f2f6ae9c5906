"""`cotswold report`.

Knows: the arguments of the command. Does not know: the content of the page.
"""

from __future__ import annotations

from pathlib import Path


def report(run: Path, *, threads: int | None = None) -> None:
    """Write a run's report, one HTML page without external resources, and print its path.

    Works during training too. The page leaves out damaged files, and lists them.

    Examples:

      cotswold report runs/demo
      cotswold report demo/run

    Parameters
    ----------
    run
        The run's directory.
    threads
        Compute threads. Default: the run's number, or all cores granted to this process.
    """
    import cotswold

    print(cotswold.report(run, threads=threads, progress=True))

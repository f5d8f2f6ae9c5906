"""`cotswold report`.

Knows: the arguments of the command. Does not know: the content of the page.
"""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cotswold.ui.terminal import write_message


def report(
    run: Path,
    *,
    open_: Annotated[bool, Parameter(name="--open", negative=())] = False,
    threads: int | None = None,
) -> None:
    """Write a run's report, one HTML page without external resources, and print its path.

    Works during training too. The page leaves out damaged files, and lists them.

    Examples:

      cotswold report runs/demo
      cotswold report demo/run --open    shows it in a browser

    Parameters
    ----------
    run
        The run's directory.
    open_
        Show the page in the web browser. Without a display, only its path is printed.
    threads
        Compute threads. Default: the run's number, or all cores granted to this process.
    """
    import cotswold

    page = cotswold.report(run, threads=threads, progress=True)
    if open_ and not (has_display() and webbrowser.open(page.resolve().as_uri())):
        write_message("no browser could be started here; open the page yourself")
    print(page)


def has_display(environ: Mapping[str, str] = os.environ, system: str = sys.platform) -> bool:
    """Return True if a browser with windows can run; a text browser would occupy the terminal.

    >>> has_display({}, "linux"), has_display({"DISPLAY": ":0"}, "linux"), has_display({}, "darwin")
    (False, True, True)
    """
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return system in ("darwin", "win32") or any(environ.get(name) for name in names)

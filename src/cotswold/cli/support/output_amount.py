"""The amount of output that the options -q and -v select.

Knows: the variable for processes of a command, logging, resources of a process. Does not know: any command.
"""

from __future__ import annotations

import logging
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from cotswold import __version__
from cotswold.errors import UserError
from cotswold.ui.format import bytes_in_words, seconds_in_words
from cotswold.ui.terminal import QUIET, VERBOSE, VERBOSITY, write_message

_NAMED = "torch", "numpy", "llvmlite"
_KILOBYTES = sys.platform != "darwin"
"""The unit of a process's largest memory, which macOS counts in bytes."""


@contextmanager
def output_amount(what: str, *, quiet: bool, verbose: bool) -> Iterator[None]:
    """Set the amount of output of this process, and of those that it starts, in a `with` block.

    The caller restores the environment. Quiet: no progress and no notes. Verbose: progress every second, log
    records of Cotswold, versions at the start, time and memory at the end.
    """
    if quiet and verbose:
        raise UserError("--quiet and --verbose exclude each other; leave one out")
    if quiet:
        os.environ[VERBOSITY] = QUIET
    if not verbose:
        yield
        return
    os.environ[VERBOSITY] = VERBOSE
    began = time.monotonic()
    with _logged():
        write_message(_versions())
        try:
            yield
        finally:
            write_message(f"{what}: {_resources(time.monotonic() - began)}")


@contextmanager
def _logged() -> Iterator[None]:
    """Write log records of Cotswold to standard error in a `with` block."""
    log, handler = logging.getLogger("cotswold"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


def _versions() -> str:
    """Return the versions of Cotswold, Python and the packages that compute."""
    found = []
    for name in _NAMED:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join([f"version {__version__}", f"Python {platform.python_version()}", *found])


def _resources(seconds: float) -> str:
    """Return time and memory of this process and of its children that have ended."""
    own, children = (resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    computed = sum(each.ru_utime + each.ru_stime for each in (own, children))
    memory = max(own.ru_maxrss, children.ru_maxrss) * (1024 if _KILOBYTES else 1)
    return (
        f"{seconds_in_words(seconds)}, {seconds_in_words(computed)} of processor time, at most "
        f"{bytes_in_words(memory)} of memory in a process"
    )

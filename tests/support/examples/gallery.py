"""Programs of `examples` with a picture, started as their docstrings say, at small size.

Knows: their command lines, their pictures. Does not know: what they train.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from examples.tools.gallery import ROOT, command
from tests.warm import PYTHON

SECONDS = 300.0
"""Longest time of a program."""


def environment() -> dict[str, str]:
    """Return variables with which other processes import what this one does."""
    paths = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def finish(name: str, directory: Path) -> str:
    """Return what the short form of an example prints."""
    done = subprocess.run(
        [*command(name, directory, PYTHON), "--short"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

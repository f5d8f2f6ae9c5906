"""A fact about this machine, and its meaning for Cotswold.

Knows: the kinds of facts. Does not know: how one is found out.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "problem"]
OK: Status = "ok"
NOTE: Status = "note"
PROBLEM: Status = "problem"

HAS, USES = "this machine has", "Cotswold uses"
"""Topics of findings."""
SOFTWARE = "other programs and packages"
_PACKAGES = {
    "etcd": {"apt-get": "etcd-server", "dnf": "etcd", "brew": "etcd"},
    "mpirun": {"apt-get": "openmpi-bin", "dnf": "openmpi", "brew": "open-mpi"},
    "chrony": {"apt-get": "chrony", "dnf": "chrony"},
}
"""Packages that provide a program, by package manager."""


@dataclass(frozen=True)
class Finding:
    """A fact, its status, and the command that changes it."""

    topic: str
    name: str
    value: str
    status: Status = OK
    remedy: str = ""
    """A command, or a sentence if no command does it; empty if nothing has to be done."""


def install_program(name: str) -> str:
    """Return the command that installs a program by this system's package manager."""
    for manager, package in _PACKAGES[name].items():
        if shutil.which(manager):
            return f"{'' if manager == 'brew' else 'sudo '}{manager} install {package}"
    return f"install {name} by the package manager of this system ({sys.platform})"

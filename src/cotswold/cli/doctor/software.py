"""Findings about programs and packages that some commands need.

Knows: names and versions of programs, the extras of the package. Does not know: hardware, limits.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from cotswold.cli.doctor.finding import NOTE, OK, SOFTWARE, Finding, install_program
from cotswold.errors import MissingExtraError, install

_ETCD_LEAST = (3, 4)
_SECONDS = 10.0
_BENCHMARKS = "bench"
"""The extra that no command needs."""
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


def software() -> Iterator[Finding]:
    """Yield etcd, Ray, mpirun and the extras of the package."""
    yield etcd(shutil.which("etcd"))
    yield ray()
    yield mpirun(shutil.which("mpirun"), shutil.which("srun"))
    try:
        requirements = requires("cotswold") or []
    except PackageNotFoundError:
        said = "unknown, because Cotswold runs from its source and is not installed"
        yield Finding(SOFTWARE, "extras", said, NOTE, "pip install . in a checkout of Cotswold")
        return
    yield from extras(requirements, is_installed)


def etcd(program: str | None) -> Finding:
    """Return the finding about etcd, in which several controllers keep their state."""
    needed = "for several controllers (cotswold cluster start --etcd); one controller needs none"
    if program is None:
        return Finding(SOFTWARE, "etcd", f"not on this machine; {needed}", NOTE, install_program("etcd"))
    found = re.search(r"(\d+)\.(\d+)\.\d+", _output([program, "--version"]))
    if found is None:
        return Finding(
            SOFTWARE, "etcd", f"{program}, which does not say its version", NOTE, f"{program} --version"
        )
    if (int(found[1]), int(found[2])) < _ETCD_LEAST:
        said = f"{program} {found[0]} is older than 3.4; {needed}"
        return Finding(SOFTWARE, "etcd", said, NOTE, install_program("etcd"))
    return Finding(SOFTWARE, "etcd", f"{found[0]}, {needed}")


def ray() -> Finding:
    """Return the finding about Ray, which connects machines."""
    from cotswold.processes.ray.settings import require_ray

    needed = "for cotswold worker and train --address"
    try:
        require_ray()
    except MissingExtraError as error:
        missing = "is not installed" in str(error)
        said = f"not installed; {needed}" if missing else f"{error}"
        return Finding(SOFTWARE, "Ray", said, NOTE, install("cluster"))
    return Finding(SOFTWARE, "Ray", f"{version('ray')}, {needed}")


def mpirun(program: str | None, srun: str | None) -> Finding:
    """Return the finding about launchers of ranks on several machines."""
    has = [name for name, found in (("mpirun", program), ("srun", srun)) if found]
    if has:
        return Finding(
            SOFTWARE, "launchers", f"{', '.join(has)} and torchrun start ranks on several machines"
        )
    said = "torchrun starts ranks on several machines; mpirun and srun are not on this machine"
    return Finding(SOFTWARE, "launchers", said, OK, "")


def extras(requirements: list[str], installed: Callable[[str], bool]) -> Iterator[Finding]:
    """Yield a finding for all installed extras, and one for each that is missing."""
    packages: dict[str, list[str]] = defaultdict(list)
    for each in requirements:
        extra, name = _EXTRA.search(each), re.match(r"[\w.-]+", each)
        if extra and name and extra[1] != _BENCHMARKS and "sys_platform" not in each:
            packages[extra[1]].append(name[0])
    missing = {extra: [each for each in names if not installed(each)] for extra, names in packages.items()}
    if has := sorted(extra for extra, names in missing.items() if not names):
        yield Finding(SOFTWARE, "extras", f"installed: {', '.join(has)}")
    for lacking, names in sorted(missing.items()):
        if names and lacking != "cluster":  # the line of Ray says so
            said = f"not installed: {', '.join(names)}"
            yield Finding(SOFTWARE, f"extra {lacking}", said, NOTE, install(lacking))


def is_installed(package: str) -> bool:
    """True if a package is installed."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _output(words: list[str]) -> str:
    """Return what a program prints; empty if it fails or takes long."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout

"""Findings about the implementation that Cotswold chooses on this machine.

Knows: which functions choose. Does not know: their reasons, tables.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Iterator

from cotswold.cli.doctor.finding import NOTE, PROBLEM, USES, Finding
from cotswold.errors import UserError


def choices() -> Iterator[Finding]:
    """Yield kernels and their cache, threads, transport and the starts of processes."""
    yield from kernels()
    yield threads()
    yield transport()
    yield starts()


def kernels() -> Iterator[Finding]:
    """Yield the backend of products with its reason, and the folder of compiled kernels."""
    from cotswold.bench.kernels.explain import backend
    from cotswold.kernels.available import VARIABLE, unavailable_reason

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the lines below say the same
        try:
            found = backend()
        except UserError as error:
            yield Finding(USES, "kernels", str(error), PROBLEM, f"unset {VARIABLE}")
            return
        why = unavailable_reason() if os.environ.get(VARIABLE) != "torch" else None
    if why is not None:
        said = f"torch.bmm, several times slower, because {why}"
        yield Finding(USES, "kernels", said, PROBLEM, "pip install --force-reinstall --no-deps llvmlite")
        return
    if found.name == "torch":
        yield Finding(USES, "kernels", f"torch.bmm, because {found.reason}", NOTE, f"unset {VARIABLE}")
        return
    yield Finding(USES, "kernels", f"{found.vector}, for {found.processor}")
    if found.cache.startswith("nowhere"):
        said = "none that is safe: each process compiles its kernels again"
        yield Finding(USES, "kernel cache", said, NOTE, "export COTSWOLD_CACHE=FOLDER, one of yours alone")
    else:
        yield Finding(USES, "kernel cache", found.cache)


def threads() -> Finding:
    """Return the finding about compute threads."""
    from cotswold.host import granted_cores

    said = f"{granted_cores()} in each process that computes; --threads and training.threads change it"
    return Finding(USES, "threads", said)


def transport() -> Finding:
    """Return the finding about messages between ranks."""
    from cotswold.mesh.transport.connect import SWITCH, has_shared_memory

    if has_shared_memory():
        return Finding(USES, "messages", "shared memory between ranks of this machine, TCP to other machines")
    if os.environ.get(SWITCH) == "0":
        said = f"torch's Gloo between ranks of this machine, because {SWITCH} is 0"
        return Finding(USES, "messages", said, NOTE, f"unset {SWITCH}")
    said = "torch's Gloo between ranks of this machine: the system forbids anonymous shared memory (memfd)"
    return Finding(USES, "messages", said, NOTE, "use Linux, and a sandbox that allows memfd_create")


def starts() -> Finding:
    """Return the finding about the start of processes."""
    ranks = "ranks are new Python processes"
    if "forkserver" in multiprocessing.get_all_start_methods():
        return Finding(
            USES,
            "processes",
            f"{ranks}; workers, replicas and servers are forks of a process with torch loaded",
        )
    said = f"{ranks}; this system has no fork, which workers, replicas and servers need"
    return Finding(USES, "processes", said, PROBLEM, "use Linux or macOS")

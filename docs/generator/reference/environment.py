"""The page of environment variables.

Knows: the meaning of each variable. Does not know: who reads it; the build fails if the source reads another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs.generator.errors import SiteError
from docs.generator.reference.text import SOURCE, prose, table

VARIABLES = {
    "Data": {
        "COTSWOLD_DATA": "Folder of the data sets that shipped recipes name, as `${COTSWOLD_DATA}/mnist`.",
        "COTSWOLD_IMAGES": "A folder or zip of your own images, for `coates2013-1.8b` and `coates2013-11b`.",
    },
    "Kernels": {
        "COTSWOLD_KERNELS": "`llvm`: compiled kernels (default). `avx2`: kernels without AVX-512. "
        "`torch`: none; "
        "products use PyTorch. See docs/kernels.md.",
        "COTSWOLD_CACHE": "Folder of compiled code. Default: `cotswold` in `XDG_CACHE_HOME`, or "
        "`~/.cache/cotswold`.",
    },
    "Tokens": {
        "COTSWOLD_TOKEN": "The secret with which processes of a run authenticate each other. See "
        "docs/launching.md.",
        "COTSWOLD_CLUSTER_TOKEN": "The secret of a cluster of parameter servers, if it differs from "
        "`COTSWOLD_TOKEN`. See docs/operations.md.",
        "COTSWOLD_CLUSTER_TOKEN_FILE": "The file with that secret, readable by its user only. While a "
        "token is "
        "changed, the file has several.",
    },
    "Messages and errors": {
        "COTSWOLD_SHARED_MEMORY": "`0`: ranks and data servers of a host send no messages through "
        "shared memory.",
        "COTSWOLD_SOCKETS": "`0`: ranks of different hosts use the collective operations of PyTorch only.",
        "COTSWOLD_DEBUG": "Any text: errors have a traceback, as with `--debug`.",
    },
    "Launchers": {
        "COTSWOLD_RANK": "Number of this rank, from 0. Set these variables yourself only if your "
        "launcher sets "
        "none that Cotswold knows. See docs/launching.md.",
        "COTSWOLD_RANKS": "Number of ranks.",
        "COTSWOLD_LOCAL_RANK": "Number of this rank on its host. Default: 0.",
        "COTSWOLD_LOCAL_RANKS": "Number of ranks on this host. Default: 1.",
        "COTSWOLD_MASTER": "`HOST:PORT` at which the first rank listens.",
    },
    "Set by Cotswold for its own processes": {
        "COTSWOLD_VERBOSITY": "`quiet` or `verbose`: the command was started with `-q` or `-v`.",
        "COTSWOLD_PARENT": "Process number of the command that started a rank.",
        "COTSWOLD_LISTENER": "Open descriptor at which the first rank listens.",
        "COTSWOLD_LOG": "Open file in which a rank records its errors.",
        "COTSWOLD_NOTICE": "Socket that tells a process to save and exit.",
        "COTSWOLD_POOL_TOKEN": "The secret of a pool of data servers.",
        "COTSWOLD_COMPONENTS": "File of Python objects that ranks of a recipe use.",
    },
}
"""Meaning of every variable that Cotswold reads, by topic."""

OTHERS = {
    "OMP_NUM_THREADS": "Compute threads of a process, if no option states them.",
    "CUDA_VISIBLE_DEVICES": "CUDA devices that a process may use.",
    "GLOO_SOCKET_IFNAME": "Network interface of ranks.",
    "WANDB_MODE, WANDB_DIR, WANDB_PROJECT": "Settings of the logger `wandb`. See docs/loggers.md.",
    "MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME": "Settings of the logger `mlflow`.",
    "MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK": "Set by torchrun for its ranks.",
    "SLURM_…, OMPI_…, PMI_…, PMIX_…": "Set by srun and mpirun for their ranks.",
    "MKL_NUM_THREADS, OPENBLAS_NUM_THREADS": "Compute threads of libraries, if they are set.",
    "DISPLAY, WAYLAND_DISPLAY, BROWSER": "How `cotswold report --open` finds a browser.",
    "TRITON_INTERPRET": "`1`: Triton's programs run on the processor.",
    "XDG_RUNTIME_DIR, TMPDIR": "Folders for the sockets of processes on one host.",
}
"""Variables of other programs that Cotswold also reads."""

_TESTS = {"COTSWOLD_PLAY"}
"""Variables that only tests in `cotswold.testing` set."""


def environment_page() -> str:
    """Return the page; raises SiteError if the source and `VARIABLES` differ."""
    check()
    parts = [
        "# Environment variables\n\n"
        "Options of commands and arguments of functions take precedence over these variables.\n"
    ]
    for topic, variables in VARIABLES.items():
        rows = [[f"`{name}`", prose(meaning)] for name, meaning in variables.items()]
        parts.append(f"\n## {topic}\n\n{table(['variable', 'meaning'], rows)}")
    rows = [[f"`{name.replace(', ', '`, `')}`", prose(meaning)] for name, meaning in OTHERS.items()]
    parts.append(f"\n## Variables of other programs\n\n{table(['variable', 'meaning'], rows)}")
    return "".join(parts)


def check() -> None:
    """Raise SiteError if a variable of the source has no meaning here, or one here is not in the source."""
    known = {name for variables in VARIABLES.values() for name in variables}
    used = set(_used()) - _TESTS
    if missing := sorted(used - known):
        raise SiteError(
            f"state the meaning of {', '.join(missing)} in docs/generator/reference/environment.py"
        )
    if unused := sorted(known - used):
        raise SiteError(
            f"remove {', '.join(unused)}, which nothing reads, from docs/generator/reference/environment.py"
        )


def _used() -> Iterator[str]:
    """Yield the variables in the source, also those of shipped recipes."""
    for pattern in ("*.py", "*.toml"):
        for file in SOURCE.rglob(pattern):
            yield from re.findall(r"\bCOTSWOLD_[A-Z]+(?:_[A-Z]+)*\b", file.read_text(encoding="utf-8"))

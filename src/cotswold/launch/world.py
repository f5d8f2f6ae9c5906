"""The rank of this process, read from the environment variables of its launcher.

Knows: the variables of Cotswold's own launcher, torchrun, Open MPI, MPICH and Intel MPI, and Slurm. Does not
know: sockets, torch, what the ranks do.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.errors import LaunchError
from cotswold.host import interface_to

LOOPBACK = "127.0.0.1"
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Variable with which a user chooses the network interface of the ranks."""
_PORTS = range(15000, 32000)
"""Ports outside Linux's ephemeral range, so that a port derived from a job's name is seldom taken."""
_SPECIAL_STEPS = 0xFFFFFFF0
"""First number of Slurm's special steps (batch scripts, interactive shells)."""


@dataclass(frozen=True)
class World:
    """The place of this process among all ranks of a job.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of ranks.
        local_rank: Number of this process among the ranks on its host.
        local_size: Number of ranks on this host.
        master: Address ("host:port") of the store through which the ranks find each other.
        launcher: Name of the program that started the ranks.
        job: Text that distinguishes this start from others that may use the same port.
        hosted: True if the launcher hosts the store; otherwise rank 0 does.
        listener: Descriptor of the listening socket that rank 0 inherited, if any.
        parent: Process id without which this process must not live.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    master: str
    launcher: str
    job: str = ""
    hosted: bool = False
    listener: int | None = None
    parent: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size or not 0 <= self.local_rank < self.local_size <= self.size:
            raise LaunchError(
                f"{self.launcher} says that this is rank {self.rank} of {self.size}, {self.local_rank} of "
                f"{self.local_size} on its host, which is impossible; check the variables that it sets"
            )

        if not 0 < self.port < 65536:
            raise LaunchError(f"{self.master} has no port from 1 to 65535; choose one")

    @property
    def host(self) -> str:
        """Host of the store."""
        return self.master.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Port of the store."""
        return int(self.master.rpartition(":")[2])


def world_of(environ: Mapping[str, str], parent: int | None = None) -> World | None:
    """Read the place of this process from its environment; None if it was started alone.

    The variables are tried in this order: Cotswold's (COTSWOLD_RANK ...), torchrun's (RANK, WORLD_SIZE ...),
    Open MPI's, MPICH's and Intel MPI's, Slurm's inside an srun step. The shell of an sbatch or salloc is no
    rank.

    Args:
        environ: Environment variables.
        parent: Process id of the parent (default: ``os.getppid()``). MPICH does not name its jobs, but the
            ranks of one host have one parent.

    Returns:
        The place of this process, or None.

    Raises:
        LaunchError: A variable is missing, or is no number.
    """
    for read in (_from_own_variables, _torchrun, _open_mpi):
        if (world := read(environ)) is not None:
            return world
    return _mpich(environ, os.getppid() if parent is None else parent) or _slurm(environ)


def threads_of(world: World, cores: int, environ: Mapping[str, str]) -> int:
    """Number of threads for this rank: the available cores divided by the ranks of its host, at least 1.

    OMP_NUM_THREADS takes precedence, with one exception. torchrun sets it to 1 if the user has not set it and
    starts more than one rank, so a 1 under torchrun counts as torchrun's default, and cores are divided. To
    use one thread there, set ``threads`` in the recipe. srun's --cpus-per-task is the number of cores of each
    rank.

    Args:
        world: The place of this process.
        cores: Number of cores that this process may use.
        environ: Environment variables.

    Returns:
        The number of threads.
    """
    chosen = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    defaulted = chosen == "1" and "TORCHELASTIC_RUN_ID" in environ and world.local_size > 1
    if chosen.isdigit() and int(chosen) > 0 and not defaulted:
        return int(chosen)
    each = environ.get("SLURM_CPUS_PER_TASK", "")
    if world.launcher == "srun" and each.isdigit():
        return max(int(each), 1)
    return max(cores // world.local_size, 1)


def settings_of(world: World, cores: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that must be in a rank's environment before torch is imported.

    They set the number of threads and, unless the user chose one, the network interface that reaches rank 0.
    They also silence warnings of torch's sockets: when a rank dies, each other rank would print thirty lines
    of addresses around the one sentence that matters.

    Args:
        world: The place of this process.
        cores: Number of cores that this process may use.
        environ: Environment variables.

    Returns:
        Names and values of the variables.
    """
    interface = environ.get(INTERFACE) or interface_to(
        world.host, several_hosts=world.local_size < world.size
    )
    return {
        **({} if interface is None else {INTERFACE: interface}),
        "OMP_NUM_THREADS": str(threads_of(world, cores, environ)),
        "TORCH_CPP_LOG_LEVEL": environ.get("TORCH_CPP_LOG_LEVEL", "FATAL"),
    }


def launcher_hosts_store(environ: Mapping[str, str]) -> bool:
    """True if the store at MASTER_ADDR is torchrun's own, which outlives the ranks."""
    return environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def first_host(nodes: str) -> str:
    """Return the first host of Slurm's compressed list: "node[03-05,9],gpu1" begins with node03."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def derived_port(job: str) -> int:
    """Derive a port from a job's name, so that all ranks compute the same."""
    return _PORTS[zlib.crc32(job.encode()) % len(_PORTS)]


def _from_own_variables(environ: Mapping[str, str]) -> World | None:
    if "COTSWOLD_RANK" not in environ:
        return None
    listener, parent = environ.get("COTSWOLD_LISTENER"), environ.get("COTSWOLD_PARENT")
    return World(
        rank=_number(environ, "COTSWOLD_RANK"),
        size=_number(environ, "COTSWOLD_RANKS"),
        local_rank=_number(environ, "COTSWOLD_LOCAL_RANK", default=0),
        local_size=_number(environ, "COTSWOLD_LOCAL_RANKS", default=1),
        master=_address(_text(environ, "COTSWOLD_MASTER"), "COTSWOLD_MASTER"),
        launcher="cotswold",
        listener=None if listener is None else int(listener),
        parent=None if parent is None else int(parent),
    )


def _torchrun(environ: Mapping[str, str]) -> World | None:
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    by_torchrun = "TORCHELASTIC_RUN_ID" in environ
    # torchrun restarts ranks with the store of the previous start
    job = f"{environ.get('TORCHELASTIC_RUN_ID', '')}.{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return World(
        rank=_number(environ, "RANK"),
        size=_number(environ, "WORLD_SIZE"),
        local_rank=_number(environ, "LOCAL_RANK", default=0),
        local_size=_number(environ, "LOCAL_WORLD_SIZE", default=1),
        master=_join(_text(environ, "MASTER_ADDR"), _number(environ, "MASTER_PORT")),
        launcher="torchrun" if by_torchrun else "the launcher that set RANK and WORLD_SIZE",
        job=job if by_torchrun else "",
        hosted=launcher_hosts_store(environ),
    )


def _open_mpi(environ: Mapping[str, str]) -> World | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    size = _number(environ, "OMPI_COMM_WORLD_SIZE")
    local_size = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    # Open MPI 5 sets only the name, Open MPI 4 both.
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
    return World(
        rank=_number(environ, "OMPI_COMM_WORLD_RANK"),
        size=size,
        local_rank=_number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=local_size,
        master=_master(environ, size == local_size, job, "mpirun -x"),
        launcher="mpirun",
        job=job,
    )


def _mpich(environ: Mapping[str, str], parent: int) -> World | None:
    if "PMI_RANK" not in environ or "PMI_SIZE" not in environ:
        return None
    size = _number(environ, "PMI_SIZE")
    if _is_slurm_step(environ) and "MPI_LOCALRANKID" not in environ:
        return None  # srun --mpi=pmi2 sets both kinds of variables; Slurm's say more
    local_size = _number(environ, "MPI_LOCALNRANKS", default=1)
    slurm = environ.get("SLURM_JOB_ID")
    job = f"{slurm}.{environ.get('SLURM_RESTART_COUNT', '0')}" if slurm else ""
    if size == local_size:
        job = f"{job} {parent}"
    return World(
        rank=_number(environ, "PMI_RANK"),
        size=size,
        local_rank=_number(environ, "MPI_LOCALRANKID", default=0),
        local_size=local_size,
        master=_master(environ, size == local_size, job, "mpirun -genv"),
        launcher="mpirun",
        job=job,
    )


def _slurm(environ: Mapping[str, str]) -> World | None:
    if not _is_slurm_step(environ):
        return None
    # A step may have fewer tasks than its job.
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    size, local_size = _number(environ, count), _local_tasks(environ)
    parts = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    job = ".".join(environ.get(part, "0") for part in parts)
    return World(
        rank=_number(environ, "SLURM_PROCID"),
        size=size,
        local_rank=_number(environ, "SLURM_LOCALID"),
        local_size=local_size,
        master=_master(environ, size == local_size, job, "srun --export=ALL,"),
        launcher="srun",
        job=job,
    )


def _is_slurm_step(environ: Mapping[str, str]) -> bool:
    """True if srun started this process; batch scripts have SLURM_PROCID, too, but no step."""
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    return "SLURM_PROCID" in environ and step.isdigit() and int(step) < _SPECIAL_STEPS


def _local_tasks(environ: Mapping[str, str]) -> int:
    """Number of the step's tasks on this host, from "4(x2),3" and the host's number (default: 1)."""
    counts: list[int] = []
    given = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or "1"
    for tasks, hosts in re.findall(r"(\d+)(?:\(x(\d+)\))?", given):
        counts += [int(tasks)] * int(hosts or 1)
    node = _number(environ, "SLURM_NODEID", default=0)
    return counts[node] if node < len(counts) else 1


def _master(environ: Mapping[str, str], one_host: bool, job: str, how: str) -> str:
    """Address at which rank 0 listens: MASTER_ADDR and MASTER_PORT if set, otherwise derived from the job."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    host = environ.get("MASTER_ADDR") or (LOOPBACK if one_host else first_host(nodes))
    if not host:
        raise LaunchError(
            f"the other hosts do not know the host of rank 0; name it, as in {how} MASTER_ADDR=HOST"
        )
    if environ.get("MASTER_PORT"):
        return _join(host, _number(environ, "MASTER_PORT"))
    if not job:
        raise LaunchError(
            "the ranks of this job share no number from which to derive a port; choose a free one, as in "
            f"{how} MASTER_PORT=29511"
        )
    return _join(host, derived_port(job))


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(text: str, name: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise LaunchError(f"{name} must be host:port, as in 10.0.0.1:29511, got {text!r}")
    return text


def _text(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise LaunchError(f"this process was started as one of several ranks, but {name} is not set; set it")
    return environ[name]


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and not environ.get(name):
        return default
    text = _text(environ, name)
    if not text.isdigit():
        raise LaunchError(f"{name} must be an integer, got {text!r}")
    return int(text)

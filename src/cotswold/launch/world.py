"""Which rank this process is, told by the environment of whatever started it.

Knows: the variables of our own launcher, torchrun, Open MPI, MPICH and Intel MPI, and Slurm. Does not know:
sockets, torch, what the ranks do.
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
"""The variable in which a user names the network interface of the ranks."""
_PORTS = range(15000, 32000)
"""Ports that Linux does not hand out by itself, so that one derived from a job's name is seldom taken."""
_SPECIAL_STEPS = 0xFFFFFFF0
"""Slurm numbers steps that nobody asked for (batch scripts, interactive shells) from here on."""


@dataclass(frozen=True)
class World:
    """The place of this process among all ranks of a job.

    ``local_rank`` of ``local_size`` counts the ranks on this host; ``master`` is "host:port" of the store
    through which the ranks find each other; ``launcher`` names who started them. ``job`` tells this start
    from any other that may use the same port. ``hosted``: the launcher itself keeps the store, otherwise rank
    0 does, on the listening socket ``listener`` if it inherited one. Without the process ``parent`` this one
    must not live.
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
                f"{self.local_size} on its host, which cannot be; look at the variables that it sets"
            )

        if not 0 < self.port < 65536:
            raise LaunchError(f"{self.master} has no port from 1 to 65535; choose one of these")

    @property
    def host(self) -> str:
        """Where the store is: the host of ``master``."""
        return self.master.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Where the store is: the port of ``master``."""
        return int(self.master.rpartition(":")[2])


def world_of(environ: Mapping[str, str], parent: int | None = None) -> World | None:
    """The place of this process by its environment; None if it was started alone.

    Asked in this order: our own variables (COTSWOLD_RANK ...), torchrun's (RANK, WORLD_SIZE ...), Open MPI's,
    those of MPICH and Intel MPI, Slurm's inside an srun step. The shell of an sbatch or salloc is no rank.
    ``parent`` is the process that started this one, os.getppid() by default: MPICH names its jobs nowhere;
    but the ranks of one host have one parent. Raises LaunchError where a variable is missing or is no number.
    """
    for read in (_own, _torchrun, _open_mpi):
        if (world := read(environ)) is not None:
            return world
    return _mpich(environ, os.getppid() if parent is None else parent) or _slurm(environ)


def threads_of(world: World, cores: int, environ: Mapping[str, str]) -> int:
    """Threads for this rank: the cores it may use divided by the ranks of its host, at least 1.

    OMP_NUM_THREADS is obeyed, with one exception: torchrun sets it to 1 where the user has not and starts
    more than one rank, so a 1 under torchrun is taken for torchrun's own, and cores are divided. Who wants
    one thread there sets ``threads`` in the recipe. srun's --cpus-per-task counts as cores of each rank.
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
    """Variables that torch must find in a rank's environment before it is imported.

    Its threads; and, unless the user chose, the network interface that reaches rank 0, and no warnings of
    torch's sockets: when a rank dies, each of the others would print thirty lines of addresses around our
    one sentence.
    """
    interface = environ.get(INTERFACE) or interface_to(
        world.host, several_hosts=world.local_size < world.size
    )
    return {
        **({} if interface is None else {INTERFACE: interface}),
        "OMP_NUM_THREADS": str(threads_of(world, cores, environ)),
        "TORCH_CPP_LOG_LEVEL": environ.get("TORCH_CPP_LOG_LEVEL", "FATAL"),
    }


def launcher_keeps_store(environ: Mapping[str, str]) -> bool:
    """Whether the store at MASTER_ADDR is torchrun's own, which outlives the ranks."""
    return environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def first_host(nodes: str) -> str:
    """The first host of Slurm's compressed list: "node[03-05,9],gpu1" begins with node03."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def derived_port(job: str) -> int:
    """A port that every rank of a job computes from its name by itself."""
    return _PORTS[zlib.crc32(job.encode()) % len(_PORTS)]


def _own(environ: Mapping[str, str]) -> World | None:
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
    # a restart by torchrun meets the store of the ranks before it
    job = f"{environ.get('TORCHELASTIC_RUN_ID', '')}.{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return World(
        rank=_number(environ, "RANK"),
        size=_number(environ, "WORLD_SIZE"),
        local_rank=_number(environ, "LOCAL_RANK", default=0),
        local_size=_number(environ, "LOCAL_WORLD_SIZE", default=1),
        master=_join(_text(environ, "MASTER_ADDR"), _number(environ, "MASTER_PORT")),
        launcher="torchrun" if by_torchrun else "whoever set RANK and WORLD_SIZE",
        job=job if by_torchrun else "",
        hosted=launcher_keeps_store(environ),
    )


def _open_mpi(environ: Mapping[str, str]) -> World | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    size = _number(environ, "OMPI_COMM_WORLD_SIZE")
    local_size = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    # version 5 gives the name alone, version 4 both
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
    if _in_step(environ) and "MPI_LOCALRANKID" not in environ:
        return None  # srun --mpi=pmi2 sets both kinds; its own say more
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
    if not _in_step(environ):
        return None
    # a step may have fewer tasks than its job
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    size, local_size = _number(environ, count), _tasks_here(environ)
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


def _in_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process: batch scripts have SLURM_PROCID, too, but no step of their own."""
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    return "SLURM_PROCID" in environ and step.isdigit() and int(step) < _SPECIAL_STEPS


def _tasks_here(environ: Mapping[str, str]) -> int:
    """Tasks of the step on this host, from "4(x2),3" and the host's number; 1 where Slurm does not say."""
    counts: list[int] = []
    given = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or "1"
    for tasks, hosts in re.findall(r"(\d+)(?:\(x(\d+)\))?", given):
        counts += [int(tasks)] * int(hosts or 1)
    node = _number(environ, "SLURM_NODEID", default=0)
    return counts[node] if node < len(counts) else 1


def _master(environ: Mapping[str, str], one_host: bool, job: str, how: str) -> str:
    """Where rank 0 listens: as the user says, else what can be known of the job."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    host = environ.get("MASTER_ADDR") or (LOOPBACK if one_host else first_host(nodes))
    if not host:
        raise LaunchError(
            f"the host of rank 0 is not known to the other hosts; name it, as in {how} MASTER_ADDR=HOST"
        )
    if environ.get("MASTER_PORT"):
        return _join(host, _number(environ, "MASTER_PORT"))
    if not job:
        raise LaunchError(
            "the ranks of this job have no number in common to derive a port from; choose a free one, as in "
            f"{how} MASTER_PORT=29511"
        )
    return _join(host, derived_port(job))


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(text: str, name: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise LaunchError(f"{name} is {text!r}; write host:port, as in 10.0.0.1:29511")
    return text


def _text(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise LaunchError(f"this process was started as one rank of several, but {name} is not set; set it")
    return environ[name]


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and not environ.get(name):
        return default
    text = _text(environ, name)
    if not text.isdigit():
        raise LaunchError(f"{name} is {text!r}, which is no number; set it to one")
    return int(text)

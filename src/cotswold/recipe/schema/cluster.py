"""`[cluster]`: the processes that share full-batch optimisation, or that are replicas.

Knows: fields, limits. Does not know: processes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from cotswold.recipe.bounds import hidden_maximum
from cotswold.recipe.schema.fields import Positive, Section, Span, Text

LOOPBACK = "127.0.0.1"
MOST_COPIES = 5
Processes = Annotated[int, Field(gt=0), hidden_maximum(100_000)]


class Cluster(Section):
    """Processes that may fail independently: workers compute, parameter servers store the vectors."""

    workers: Processes = 1
    """Number of workers, each a process, or the ranks of `mesh.grid`. For `batch`, one worker without
    `ray_address` runs everything in one process, without servers or sockets; for `downpour`, workers are the
    replicas.
    """
    processes: Processes = 1
    """For `downpour`: processes per replica, all on one host, one core each. They share one copy of the
    weights and add their steps to it without locks (Hogwild; Chilimbi et al. 2014, section 3.2). The
    replica has one connection to the servers, and a push contains `push_every` batches of each process.
    """
    servers: Processes = 1
    """Number of parameter servers. They store the parameters, directions and history in shards of about 1
    MB.
    """
    replication_factor: Annotated[int, Field(ge=1, le=MOST_COPIES)] = 1
    """For `downpour`: replication factor, the number of servers that hold each bucket of the parameters.
    With 2 or more, one server may die at any time: another one takes over, each update counts once, and
    the run continues (Chilimbi et al. 2014, section 3.3: 3). With 1, the run ends with a server and must
    be resumed.
    """
    replication_factor_min: Annotated[int, Field(ge=1, le=MOST_COPIES)] = 1
    """For `downpour`: smallest number of servers that must hold a bucket to accept a push; with fewer,
    pushes wait. An acknowledged push is then on at least this many servers, and all but one of these may
    die at once without loss.
    """
    topology: Literal["star", "chain"] = "star"
    """For `downpour` with copies: replication topology. `star`: the primary sends each change to all other
    copies. `chain`: it sends to the first, which forwards to the next (chain replication). With three
    copies, `chain` halves the primary's network traffic but acknowledges a push later.
    """
    flush_seconds: Span | None = None
    """For `downpour`: age in seconds of the state that each parameter server keeps on disk, in the run's
    folder. If all servers of a bucket die at once, others resume from their disks. Updates younger than
    this are lost and counted, and their samples are assigned again. Default: nothing is kept on disk, and
    the run is resumed from its last checkpoint (Chilimbi et al. 2014, 3.3.2).
    """
    controllers: Text | None = None
    """For `downpour`: addresses of the controllers of a running parameter-server cluster (`cotswold
    cluster start`), `host:port,host:port`. The cluster stores the parameters of this run and of others;
    its token is in COTSWOLD_CLUSTER_TOKEN. The run then starts no servers.
    """
    max_buckets: Processes | None = None
    """For `downpour` with copies: largest number of buckets, the parts of the parameters that are
    replicated separately. Default: 8 per server, and 64 on a running cluster.
    """
    ray_address: Text | None = None
    """Head of a Ray cluster, `host:port`, on whose machines the processes start. Default: this machine
    only.
    """
    ports: Text | None = None
    """Range of ports on which processes listen for other machines, `30000-30099`: at least one per process
    of a machine, plus spares. Default: any free port. For Ray's ports see `cotswold worker --ports`.
    """
    spread_servers: bool = False
    """Spread parameter servers over all machines, to share memory and traffic; if a machine with a server
    leaves, the run ends and is resumed from its checkpoint. Default: all servers run on the machine of
    `cotswold train`, which the run needs anyway.
    """
    encrypt: bool = True
    """Encrypt connections between hosts (CURVE); connections within a host are never encrypted."""
    point_transfer: Literal["sandblaster", "bunyip"] = "sandblaster"
    """Transfer of the point. `sandblaster`: workers pull it from the servers for each evaluation.
    `bunyip`: workers keep it; they receive the direction once per iteration, then only step lengths.
    """
    backup_tasks: Annotated[int, Field(ge=0), hidden_maximum(99)] = 1
    """Speculative execution: number of further workers that may compute one of the last portions of an
    evaluation; the first result counts. 0 for no backup tasks.
    """
    link_megabits: Positive = 1000.0
    """Speed of each machine's network card in Mb/s; it determines the order in which sums are reduced."""
    replay_run: Text | None = None
    """A run whose evaluations ended before all samples were evaluated: use the same samples in each cycle."""
    heartbeat_timeout: Span = 10.0
    """Heartbeat timeout in seconds. A worker or replica that is silent for this long counts as lost: its
    portions, or samples, are assigned to others. If a parameter server of replicas is silent for this
    long, the run ends and must be resumed. If the step, portion or evaluation of a replica, worker or
    evaluator makes no progress, the process is ended and another one started: after this time if one of
    several processes is stopped, after three times as long if all only wait. Set it higher if data arrive
    with long delays.
    """
    unavailable_timeout: Span = 300.0
    """Seconds to wait if no worker is left, before the run saves and ends; with `controllers`,
    seconds to wait if the cluster holds no copy of some bucket or cannot be reached.
    """
    metrics_address: Text | None = None
    """Address at which the run serves Prometheus metrics during training, `127.0.0.1:9100`, at the path
    `/metrics`; a port alone means the loopback address. Anyone who can reach it can read it. Default: no
    metrics.
    """

    @property
    def keeps_copies(self) -> bool:
        """True if buckets of the parameters are copied between servers, or to later servers by disk."""
        return self.replication_factor > 1 or self.flush_seconds is not None or self.controllers is not None

    @property
    def alone(self) -> bool:
        """True if one process does everything."""
        return self.workers == 1 and self.ray_address is None

    @field_validator("ray_address")
    @classmethod
    def _check_ray_address(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("ray_address is empty; write HOST:PORT, or remove it")
        return value

    @field_validator("metrics_address", mode="before")
    @classmethod
    def _port_as_text(cls, value: object) -> object:
        return str(value) if type(value) is int else value

    @field_validator("metrics_address")
    @classmethod
    def _check_metrics_address(cls, value: str | None) -> str | None:
        metrics_place(value)
        return value

    @field_validator("ports")
    @classmethod
    def _check_ports(cls, value: str | None) -> str | None:
        port_range(value)
        return value


def metrics_place(text: str | None) -> tuple[str, int] | None:
    """Return the address and port for metrics; raises ValueError for a text that is neither.

    >>> metrics_place("9100"), metrics_place("[::1]:9100")
    (('127.0.0.1', 9100), ('::1', 9100))
    """
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
    if not (host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"{text!r} is not a port; write a port, such as 9100, or an address, 127.0.0.1:9100")
    return host, int(port)


def port_range(text: str | None) -> tuple[int, int] | None:
    """Return the first and last port of a range; raises ValueError for any other text.

    >>> port_range("30000-30099")
    (30000, 30099)
    """
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 1 << 16):
        raise ValueError(
            f"{text!r} is not a range of ports; write the first and the last, such as 30000-30099"
        )
    return int(first), int(last)

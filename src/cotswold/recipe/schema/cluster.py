"""`[cluster]`: the processes among which whole-set optimisation, or replicas, are spread.

Knows: fields, limits. Does not know: processes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from cotswold.recipe.bounds import at_most
from cotswold.recipe.schema.fields import Positive, Section, Span, Text

LOOPBACK = "127.0.0.1"
MOST_COPIES = 5
Processes = Annotated[int, Field(gt=0), at_most(100_000)]


class Cluster(Section):
    """Processes that live and die alone: workers compute, parameter servers keep the vectors."""

    workers: Processes = 1
    """Workers, each a process, or the ranks of `mesh.grid`. For `batch` one process without `address` does
    everything itself, without servers or sockets; for `downpour` these are the replicas."""
    processes: Processes = 1
    """For `downpour`: processes of a replica, all on one host, each on a core of its own. They share one copy
    of the weights, and add their steps to it without locks (Hogwild; Chilimbi et al. 2014, section 3.2);
    the replica has one conversation with the servers, in which it pushes `push_every` batches of each."""
    servers: Processes = 1
    """Parameter servers, which keep the parameters, directions and history in shards of about 1 MB."""
    server_copies: Annotated[int, Field(ge=1, le=MOST_COPIES)] = 1
    """For `downpour`: servers that have each part of the parameters. With 2 or more one may die at any time:
    another that has what it had goes on in its place, each update counts once, and the run is not stopped
    (Chilimbi et al. 2014, section 3.3: 3). With 1 the run ends with a server, and is resumed."""
    server_copies_min: Annotated[int, Field(ge=1, le=MOST_COPIES)] = 1
    """For `downpour`: with fewer servers that have a part of the parameters pushes to it wait. What is
    acknowledged is then on so many at least, and one less of these may die at once and nothing is lost."""
    replication: Literal["star", "chain"] = "star"
    """For `downpour` with copies: how what changes comes from one server to the others that have a part. In a
    `star` it sends it to each; in a `chain` to the first, which hands it on to the next (chain replication):
    with three copies its network card carries half as much, and a push is acknowledged later."""
    flush_seconds: Span | None = None
    """For `downpour`: each parameter server keeps on disk, in the run's folder, what it knew so long ago. If
    all servers that have a part of the parameters die at once, others go on from their disks: of the newest
    updates, those of this time are lost, which is counted, and their samples are handed out again. None
    where nothing is said: the run is then resumed from its last checkpoint (Chilimbi et al. 2014, 3.3.2)."""
    parameter_servers: Text | None = None
    """For `downpour`: the controllers of a cluster of parameter servers that stands (`cotswold cluster
    start`), `host:port,host:port`, which keeps the parameters of this run among others; the cluster's token
    is in COTSWOLD_CLUSTER_TOKEN. The run then starts no servers of its own."""
    buckets: Processes | None = None
    """For `downpour` with copies: parts of the parameters, each of which has its copies by itself, at most; 8
    a server where nothing is said, and 64 on a cluster that stands."""
    address: Text | None = None
    """The head of a Ray cluster, `host:port`, on whose machines the processes are started; on this machine
    alone where nothing is said."""
    ports: Text | None = None
    """The ports at which processes listen for those of other machines, `30000-30099`: one for each process of
    a machine, and some more; any that is free where nothing is said. Ray's own: `cotswold worker --ports`."""
    spread_servers: bool = False
    """Whether parameter servers stand on all machines, which share their memory and traffic; a machine that
    leaves with one ends the run, which is resumed from its checkpoint. Otherwise all stand on the machine of
    `cotswold train`, without which there is no run anyway."""
    encrypt: bool = True
    """Whether connections between hosts are encrypted (CURVE); those of one host never are."""
    travel: Literal["sandblaster", "bunyip"] = "sandblaster"
    """How the point travels. `sandblaster`: workers pull it from the servers for each evaluation; `bunyip`:
    workers keep it, get the direction once an iteration, and then step lengths alone."""
    copies: Annotated[int, Field(gt=0), at_most(100)] = 2
    """How many workers may have one of the last portions of an evaluation, of which the first answer counts;
    1 for no backup copies."""
    link_megabits: Positive = 1000.0
    """Speed of each machine's network card, Mb/s: by it the order in which sums are reduced is chosen."""
    replay: Text | None = None
    """A run whose evaluations ended before all patterns were done: count in each cycle the patterns that it
    counted."""
    silence: Span = 10.0
    """Seconds of silence. A worker or a replica that says nothing for so long is given up: its portions, or
    samples, are given to others. A parameter server of replicas that does not answer for so long ends the
    run, which is resumed. A replica, a worker or an evaluator whose step, portion or judgement stands still
    is ended, and another is started: after so long where a process of several is stopped, after three times
    as long where all only wait. A longer wait, for data from elsewhere, needs more."""
    wait: Span = 300.0
    """Seconds for which the run waits where there is no worker at all, before it saves and ends; with
    `parameter_servers`, where the cluster keeps none of some part of the parameters, or none is reached."""
    metrics: Text | None = None
    """Where the run serves metrics for Prometheus while it is trained, `127.0.0.1:9100`, at the path
    `/metrics`; a port alone is one of this machine's loopback. Whoever reaches it may read it. None where
    nothing is said."""

    @property
    def keeps_copies(self) -> bool:
        """Whether the parameters are in parts that servers give to each other, or to those after them."""
        return self.server_copies > 1 or self.flush_seconds is not None or self.parameter_servers is not None

    @property
    def alone(self) -> bool:
        """Whether one process does everything."""
        return self.workers == 1 and self.address is None

    @field_validator("address")
    @classmethod
    def _is_somewhere(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("address is empty; write HOST:PORT, or take it out")
        return value

    @field_validator("metrics", mode="before")
    @classmethod
    def _is_a_text(cls, value: object) -> object:
        return str(value) if type(value) is int else value

    @field_validator("metrics")
    @classmethod
    def _is_a_place(cls, value: str | None) -> str | None:
        metrics_place(value)
        return value

    @field_validator("ports")
    @classmethod
    def _are_ports(cls, value: str | None) -> str | None:
        port_range(value)
        return value


def metrics_place(text: str | None) -> tuple[str, int] | None:
    """The address and the port at which metrics are served; raises ValueError for what names none.

    >>> metrics_place("9100"), metrics_place("[::1]:9100")
    (('127.0.0.1', 9100), ('::1', 9100))
    """
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
    if not (host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"{text!r} names no port; write one, such as 9100, or an address, 127.0.0.1:9100")
    return host, int(port)


def port_range(text: str | None) -> tuple[int, int] | None:
    """The first and the last of the ports that a text names; raises ValueError for what names none.

    >>> port_range("30000-30099")
    (30000, 30099)
    """
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 1 << 16):
        raise ValueError(f"{text!r} names no ports; write the first and the last, such as 30000-30099")
    return int(first), int(last)

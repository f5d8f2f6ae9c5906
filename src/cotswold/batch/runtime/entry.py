"""Start of a cluster: processes, endpoint, initial parameters.

Knows: the order in which a cluster starts and is given up. Does not know: requests
(`batch.runtime.cluster`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cotswold import wire as m
from cotswold.batch.runtime.cluster import BatchCluster
from cotswold.batch.runtime.startup import Startup, WorkDescription
from cotswold.host import ForkServer, Processes, Token
from cotswold.host.open_files import require_descriptors
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.coordinator_loop import OnEvent
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.transport import Endpoint

PRELOADED = ("torch", "cotswold.batch.runtime.worker_process", "cotswold.paramserver.runtime.server_process")
"""Modules that a fork server imports once."""


def open_cluster(
    settings: ClusterSettings,
    work: str,
    arguments: Mapping[str, object],
    *,
    processes: Processes | None = None,
    token: Token | None = None,
    host: str | None = None,
    logs: Path | None = None,
    on_event: OnEvent = lambda kind, more: None,
) -> BatchCluster:
    """Start workers and parameter servers, and wait until the initial parameters are on the servers.

    Args:
        settings: Numbers of processes, timeouts and the way that sums travel.
        work: Function that builds the `Work` in each worker, as ``"module:function"``.
        arguments: Keyword arguments of that function; JSON values only.
        processes: Starts the processes; None makes a fork server on this host, which the cluster closes at
            its end.
        token: Secret that authenticates the processes; None makes a new one.
        host: Address at which other machines reach this one; None without other machines.
        logs: Folder for the output of the processes, one file each; None prints to this process's output.
        on_event: Called with the kind and the values of each event: workers that join or leave, backup
            copies, evaluations.

    Returns:
        The running cluster. Close it, or use it as a context manager.

    Raises:
        UserError: The work cannot be built.
        MachineError: A process cannot be started.
    """
    require_descriptors(settings.members)
    token = token or Token.new()
    own = None
    if processes is None:
        processes = own = ForkServer((*PRELOADED, work.partition(":")[0]))
    endpoint = None
    try:
        endpoint = Endpoint(
            token,
            m.COORDINATOR,
            host=host,
            ports=EndpointSettings.of(settings, host).one_of_ports,
            encrypt=settings.encrypt,
            lost_seconds=settings.lost_seconds,
        )
        task = WorkDescription(work, arguments, logs, host)
        opening = Startup(settings, task, processes, token, endpoint, on_event)
        try:
            opened = opening.open()
        except BaseException:
            opening.process_group.close()
            raise
    except BaseException:
        if endpoint is not None:
            endpoint.close()
        if own is not None:
            own.close()
        raise
    return BatchCluster(settings, opened, on_event, own)

"""The coordinator of replicas whose servers are replicated: the loss of a server does not end the run.

Knows: buckets, that servers and controllers may be replaced. Does not know: the server of a bucket.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cotswold import wire as m
from cotswold.errors import RESUME
from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.phrases import counted
from cotswold.processes.coordinator_loop import ClusterFailedError, OnEvent
from cotswold.processes.process_group import ProcessGroup
from cotswold.replicas.coordinator_loop import SILENT_SERVER_SECONDS, ReplicaCoordinator
from cotswold.replicas.restored_versions import VersionCheck, restored_event
from cotswold.replicas.run_metrics import RunMetrics
from cotswold.replication.client.standalone_cluster import StandaloneCluster
from cotswold.replication.controller.event_text import GATHERED
from cotswold.replication.runtime.run_cluster import RunCluster
from cotswold.wire.lifecycle import CountersRequest, EventReport, ServerCounters, ServerReady
from cotswold.wire.messenger import AnyMessage

USUAL_SECONDS = 1.5
"""Seconds after which a wait is reported."""
_REPORT_SECONDS = 10.0
"""Seconds until a wait for servers is reported again."""
_RETRY_SECONDS = 0.5
"""Seconds after which unanswered requests are resent."""


class ReplicatedCoordinator(ReplicaCoordinator):
    """The event loop of the coordinator of replicas with replicated servers."""

    def __init__(
        self,
        process_group: ProcessGroup,
        machine: Dispatcher,
        on_event: OnEvent,
        cluster: RunCluster | StandaloneCluster,
        patience: float,
    ) -> None:
        """``patience``: seconds that servers of a standalone cluster may be silent, as their supervisors
        restart them."""
        super().__init__(cluster.messenger, process_group, machine, on_event)
        self._cluster = cluster
        self.outlived = isinstance(cluster, StandaloneCluster)
        self._metrics = RunMetrics()
        self._version_check = VersionCheck(machine.shards)
        self._patience = patience

    @property
    def servers(self) -> list[str]:
        """Names of the server processes."""
        return self._cluster.servers

    @property
    def server_timeout(self) -> float:
        """Seconds that servers may stay silent."""
        return max(self._patience, super().server_timeout) if self.outlived else super().server_timeout

    @property
    def counters_request(self) -> CountersRequest:
        """The request for a server's counts."""
        return self._cluster.counters_request

    def close(self) -> None:
        """Dismiss all members, and end their processes."""
        if isinstance(self._cluster, StandaloneCluster):
            self._cluster.close()
        super().close()

    def lost_servers(self, servers: Sequence[str]) -> str:
        """Always empty: a bucket without a server is silent, perhaps temporarily."""
        return ""

    def wait_for_servers(
        self,
        handler: Callable[[AnyMessage], None],
        owing: Callable[[], Sequence[str]],
        last_answer: Callable[[], float],
        silent_seconds: float,
        unanswered_requests: Callable[[], Sequence[m.Send]],
    ) -> None:
        """Wait as without replication, but resend unanswered requests: the present primary of a bucket may
        not have received them."""
        sent = time.monotonic()

        def owing_again() -> Sequence[str]:
            nonlocal sent
            owed = owing()
            if owed and time.monotonic() - sent > _RETRY_SECONDS:
                sent = time.monotonic()
                self.deliver(unanswered_requests())
            return owed

        seconds = max(silent_seconds, self.server_timeout) if self.outlived else silent_seconds
        super().wait_for_servers(handler, owing_again, last_answer, seconds, unanswered_requests)

    def silence_text(self, now: float) -> str:
        """Silent servers as without replication; otherwise the buckets without a primary, and silent
        controllers."""
        said = super().silence_text(now)
        if not said and (buckets := self.machine.silent_servers(now, SILENT_SERVER_SECONDS)):
            said = f"no server has answered for {counted(len(buckets), 'bucket')} of the parameters"
        return ", and ".join(filter(None, (said, self._cluster.silence_text(now))))

    def unanswered(self, servers: Sequence[str], seconds: float) -> ClusterFailedError:
        """The error for buckets of which no member has answered for ``seconds``."""
        many = "one bucket" if len(servers) == 1 else f"{len(servers)} buckets"
        if unknown := self._cluster.unknown:
            return ClusterFailedError(
                f"{unknown}, and {many} said nothing for {seconds:g} s",
                remedy=f"check with cotswold cluster status whether servers are running, and {RESUME}",
            )
        return ClusterFailedError(
            f"{many} of the parameters said nothing for {seconds:g} s: no running server has a copy, or "
            "none is reachable"
        )

    def _normalize(self, message: AnyMessage) -> AnyMessage:
        return self._metrics.of(message) if self.outlived and isinstance(message, ServerCounters) else message

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        match message:
            case ServerReady(name) if name == sender and self._cluster.is_server(name):
                self._cluster.on_ready(message, self.messenger.endpoint.peers)
            case m.Join():  # the replica may be older than a restarted controller
                self._cluster.send_addresses(sender)
                super()._on_message(sender, message)
            case m.StatusReply() if isinstance(self._cluster, StandaloneCluster):
                for each in self._cluster.events_of(message):
                    about = {"name": each.name, "change": each.kind, "sentence": each.sentence}
                    self._on_event(
                        "replication", about | ({"servers": dict(each.servers)} if each.run else {})
                    )
            case m.RunDeleted(run) if isinstance(self._cluster, StandaloneCluster):
                if sender in self._cluster.controllers:
                    self._cluster.removed(run)
            case ServerCounters() if message.server == sender:
                if rows := self._version_check.on_counters(message, self._cluster.messenger.groups):
                    self._on_event("restored", restored_event(rows))
                super()._on_message(sender, message)
            case EventReport("disk", name, sentence) if self._cluster.is_server(sender):
                self._on_event("disk", {"name": name, "sentence": sentence})
            case EventReport(kind, name, sentence) if self._cluster.is_server(sender) and kind != GATHERED:
                self._on_event("replication", {"name": name, "change": kind, "sentence": sentence})
            case _:
                super()._on_message(sender, message)

    def _on_process_exit(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        if not self._cluster.is_server(name):
            return super()._on_process_exit(name, why, now)
        self.monitor.forget(name)
        if not self.process_group.is_watched(name):  # otherwise it is cut off and may act: its lease decides
            self._cluster.on_exit(name, why, now, is_seen=not self.process_group.is_lost(name))
            self._start_due(now)
        return []

    def _start_due(self, now: float) -> None:
        """Restart servers and controllers of the run that are due."""
        if isinstance(self._cluster, RunCluster):
            for name, sentence in self._cluster.restart_due(now):
                self._on_event("replication", {"name": name, "change": "failed", "sentence": sentence})

    def _tick(self, now: float) -> None:
        if isinstance(self._cluster, StandaloneCluster):
            self._cluster.request_status(now)
            if trouble := self._cluster.problem_text(now):
                self._on_event("waiting", {"name": self._cluster.run, "sentence": trouble})
        self._start_due(now)
        super()._tick(now)

    def _on_primary_changed(self, name: str) -> None:
        self.deliver(self.machine.resend(name))

    def create(self, request: m.Create, seconds: float) -> None:
        """Have buckets created, and wait until each has a primary; raise ClusterFailedError after
        ``seconds``."""
        began, due = time.monotonic(), USUAL_SECONDS
        while unknown := self._cluster.messenger.unknown:
            waited = time.monotonic() - began
            if waited > seconds:
                raise self._missing_buckets_error(unknown, seconds)
            if waited > due:
                due += _REPORT_SECONDS
                said = (
                    f"waiting for servers for {len(unknown)} of {counted(len(request.buckets), 'part')} of "
                    f"the parameters, for {seconds - waited:.0f} s more; training has not started, so "
                    "Ctrl-C, and again after a moment, exits at once"
                )
                self._on_event("waiting", {"name": request.run, "sentence": said})
            self._cluster.create(request)
            self.step(self.tick_seconds)

    def _missing_buckets_error(self, buckets: Sequence[str], seconds: float) -> ClusterFailedError:
        """The error for buckets that no server has accepted for ``seconds``."""
        if not self.outlived:
            return self.unanswered(buckets, seconds)
        return ClusterFailedError(
            f"{counted(len(buckets), 'part')} of the parameters {'has' if len(buckets) == 1 else 'have'} "
            f"been accepted by no server for {seconds:g} s: none is running, or the controllers refuse this "
            "run",
            remedy=f"see cotswold cluster status, and {RESUME}",
        )

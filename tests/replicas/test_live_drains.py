"""Drains of servers of a cluster during the training of a run: real processes, some killed meanwhile.

The gradient of the run is 1, so its parameters count the updates of each element by each sample.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.replicas.test_disks_of_servers import check_after_losses
from tests.replicas.test_replicated_servers import check_tallies
from tests.replicas.test_standalone_clusters import at
from tests.replicas.test_standalone_clusters import token as token
from tests.support.processes.supervisors import Supervisor
from tests.support.replicas.opened_replicas import Opener
from tests.support.replicas.opened_replicas import opened as opened
from tests.support.replication.standalone_cluster import until

from cotswold.host import Token
from cotswold.replicas.replicas import Replicas
from cotswold.replication.client.admin import AdminClient
from cotswold.wire import ReplicaServerStatus

pytestmark = [pytest.mark.slow, pytest.mark.soak]


@contextmanager
def hosts(folder: Path, token: Token, *servers: int) -> Iterator[tuple[list[Supervisor], AdminClient, str]]:
    """Yield hosts with these numbers of servers, three in total; the first host has the controller."""
    with ExitStack() as held:
        (port,) = held.enter_context(free_ports(1))
        place, found = f"127.0.0.1:{port}", list[Supervisor]()
        for number, count in enumerate(servers):
            name = "abc"[number]
            words = ["start", "--replication-factor", 2] if number == 0 else ["add"]
            words += ["--controllers", place, "--servers", count, "--name", name, "--flush-seconds", 0.4]
            found.append(held.enter_context(Supervisor(folder / name, token, *words)))
        operator = held.enter_context(AdminClient([place], token, wait_seconds=30.0))
        until(lambda: sum(each.state == "living" for each in seen(operator)) == 3, 60.0)
        yield found, operator, place


def seen(operator: AdminClient) -> tuple[ReplicaServerStatus, ...]:
    return operator.status().servers


def server_on(operator: AdminClient, name: str) -> ReplicaServerStatus:
    """Return the newest server of the host."""
    return [each for each in seen(operator) if each.name.startswith(f"server-{name}-")][-1]


def learn_until(replicas: Replicas, is_so: object) -> None:
    deadline = time.monotonic() + 60
    while not is_so():  # type: ignore[operator]  # any function
        assert time.monotonic() < deadline, "it does not come to that"
        replicas.proceed(0.1)


def test_a_server_that_is_drained_while_a_run_learns_ends_and_is_not_started_again(
    opened: Opener, tmp_path: Path, token: Token
) -> None:
    with hosts(tmp_path, token, 2, 1) as ((one, other), operator, place), opened(**at(place)) as replicas:
        replicas.proceed(0.5)
        victim = server_on(operator, "b").name
        *_, last = operator.drain(victim, 20.0)
        assert last.left == 0
        learn_until(replicas, lambda: not other.living)
        (controller,) = (number for name, number in one.living.items() if "controller" in name)
        os.kill(controller, signal.SIGKILL)  # who leads next knows it, too
        learn_until(replicas, lambda: len(one.living) == 3)
        other.end(signal.SIGTERM)
        other.start()
        check_tallies(replicas)
        until(lambda: server_on(operator, "b").state == "drained")
        assert other.processes.keys() == {victim}, "no process has had its disk since"
        operator.undrain(victim)
        until(lambda: server_on(operator, "b").state == "living", 60.0)
        assert [*other.living] == [f"{victim}.1"]


def test_a_drain_whose_supervisor_is_killed_goes_on_with_the_next_server_of_the_disk(
    opened: Opener, tmp_path: Path, token: Token
) -> None:
    with hosts(tmp_path, token, 2, 1) as ((_, other), operator, place), opened(**at(place)) as replicas:
        replicas.proceed(0.5)
        victim = server_on(operator, "b").name
        begun = next(operator.drain(victim, 20.0))
        other.end(signal.SIGKILL)
        assert begun.left, "it was under way"
        other.start()
        learn_until(replicas, lambda: f"{victim}.1" in other.processes)
        learn_until(replicas, lambda: not other.living)
        check_tallies(replicas)
        assert other.told("drained"), "it has no copies, so its host has ended it"
        until(lambda: server_on(operator, "b").state == "drained")


def test_a_drain_goes_on_after_the_one_supervisor_of_all_servers_is_killed(
    opened: Opener, tmp_path: Path, token: Token
) -> None:
    with hosts(tmp_path, token, 3) as ((host,), operator, place), opened(**at(place)) as replicas:
        replicas.proceed(1.5)
        victim = seen(operator)[0].name
        next(operator.drain(victim, 20.0))
        host.end(signal.SIGKILL)
        host.start()
        learn_until(
            replicas, lambda: any("drained and has no copies" in each for each in host.told("drained"))
        )
        check_after_losses(replicas)
        until(lambda: not [name for name in host.living if name.startswith(victim)])

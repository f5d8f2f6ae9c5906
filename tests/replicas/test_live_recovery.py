"""Loss of the controllers' metadata during a run, over several hosts: real processes.

The gradient of the run is 1, so its parameters count the updates of each element by each sample.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.replicas.test_disks_of_servers import check_after_losses
from tests.replicas.test_live_drains import hosts, learn_until
from tests.replicas.test_standalone_clusters import at
from tests.replicas.test_standalone_clusters import token as token
from tests.replication.test_metadata_recovery import delete, truncate
from tests.support.processes.supervisors import Supervisor
from tests.support.replicas.opened_replicas import Opener
from tests.support.replicas.opened_replicas import opened as opened
from tests.support.replication.etcd_members import members
from tests.support.replication.standalone_cluster import until

from cotswold.host import Token
from cotswold.replicas.replicas import Replicas

pytestmark = [pytest.mark.slow, pytest.mark.soak]
ADDRESSES = {"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"}


def counted(replicas: Replicas, more: int) -> None:
    """Train until ``more`` more samples count."""
    goal = replicas.ledger.total.counted + more
    learn_until(replicas, lambda: replicas.ledger.total.counted >= goal)


@pytest.mark.parametrize("harm", [delete, truncate], ids=lambda harm: harm.__name__)
def test_a_host_makes_its_lost_state_again_and_the_run_goes_on_with_what_other_hosts_have(
    opened: Opener, tmp_path: Path, token: Token, harm: Callable[[Path], None]
) -> None:
    settings = {"silent": 120.0, "epochs": 12}
    with (
        hosts(tmp_path, token, 2, 1) as ((one, _), _, place),
        opened(**{**at(place), **settings}) as replicas,
    ):
        counted(replicas, 1000)
        one.end(signal.SIGKILL)
        state = one.folder / "state.sqlite"
        harm(state)
        for each in one.folder.glob("state.sqlite-*"):
            each.unlink()
        one.start()
        learn_until(replicas, lambda: one.told("metadata"))
        assert "was rebuilt from the disks of this host: 4 buckets of 1 run" in one.told("metadata")[0]
        check_after_losses(replicas)


def test_a_host_that_comes_late_with_the_newest_disk_is_waited_for(
    opened: Opener, tmp_path: Path, token: Token
) -> None:
    with ExitStack() as held:
        ports = dict(zip("abc", held.enter_context(free_ports(3)), strict=True))
        places = [f"{ADDRESSES[name]}:{ports[name]}" for name in "abc"]
        before = held.enter_context(members(folder(tmp_path / "etcd"), 3))
        found = {
            name: held.enter_context(host(tmp_path / name, token, name, places, before.endpoints))
            for name in "abc"
        }
        until(lambda: all(len(each.living) == 2 for each in found.values()), 60.0)
        replicas = held.enter_context(opened(**{**at(*places), "silent": 120.0, "epochs": 12}))
        counted(replicas, 500)
        for name in "ab":
            found[name].end(signal.SIGKILL)
            counted(replicas, 500)
        found["c"].end(signal.SIGKILL)  # it was alone for a while
        for number in range(3):
            before.kill(number)
        after = held.enter_context(members(folder(tmp_path / "another"), 3))
        command = [sys.executable, "-m", "cotswold", "cluster", "recover", str(tmp_path / "b")]
        command += ["--folder", str(tmp_path / "a"), "--etcd", ",".join(after.endpoints)]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        assert "server-c-0 may have newer data of some" in said.stdout + said.stderr
        again = {name: host(tmp_path / name, token, name, places, after.endpoints) for name in "abc"}
        for name in "ab":
            held.enter_context(again[name])
        late = time.monotonic() + 10.0
        learn_until(replicas, lambda: time.monotonic() > late)
        assert not any(again[name].told("recovered") for name in "ab"), "the newest may come"
        held.enter_context(again["c"])
        learn_until(replicas, lambda: sum(len(each.told("recovered")) for each in again.values()) >= 4)
        revived = [sentence for each in again.values() for sentence in each.told("recovered")]
        assert all("server-c-0.1 starts from its disk" in each for each in revived[:4])
        check_after_losses(replicas)


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def host(path: Path, token: Token, name: str, places: list[str], etcd: tuple[str, ...]) -> Supervisor:
    """Return a host with a controller and a server."""
    words = ["start", "--listen", ADDRESSES[name], "--name", name, "--servers", 1, "--flush-seconds", 0.4]
    return Supervisor(path, token, *words, "--controllers", ",".join(places), "--etcd", ",".join(etcd))

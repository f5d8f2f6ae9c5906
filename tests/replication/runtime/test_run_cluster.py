"""Servers with copies, and their controller: the addresses that they learn."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

from cotswold.errors import MachineError
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.replication.runtime.run_cluster import CONTROLLER, RunCluster
from cotswold.wire import CONTROLLERS, ServerExited
from cotswold.wire.lifecycle import ControllerAddresses, ServerReady


class FakeProcessGroup:
    """Records started processes; starts none while ``trouble`` gives a reason."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.trouble = ""

    def start(self, call: str, *, spread: bool = False) -> None:
        if self.trouble:
            raise MachineError(self.trouble)
        self.started.append(call)


class FakeMessenger:
    def __init__(self) -> None:
        self.sent: list[tuple[str, object]] = []

    def send(self, to: str, message: object) -> None:
        self.sent.append((to, message))

    def find(self, controllers: object) -> None:
        pass


def test_a_server_that_is_there_later_than_a_controller_that_was_started_again_hears_of_it() -> None:
    messenger = FakeMessenger()
    with ExitStack() as held:
        keepers = RunCluster(
            ReplicatedClusterSettings(), cast(Any, None), cast(Any, messenger), cast(Any, None), held
        )
        keepers.on_ready(ServerReady(CONTROLLER, "tcp://controller"), ["server-0"])
        keepers.on_ready(ServerReady("server-1", "tcp://server"), ["server-0"])
    told = ControllerAddresses(((CONTROLLER, "tcp://controller"),))
    assert messenger.sent == [("server-0", told), ("server-1", told)]


def test_a_controller_knows_with_how_few_copies_updates_wait() -> None:
    started: list[dict[str, Any]] = []

    class Staff:
        def start(self, call: dict[str, Any], **_: object) -> None:
            started.append(call)

    settings = ReplicatedClusterSettings(servers=3, replication_factor=3, replication_factor_min=2)
    with ExitStack() as held:
        call = cast(Any, lambda name, role, told: told)
        RunCluster(settings, cast(Any, Staff()), cast(Any, FakeMessenger()), call, held).start_controller(0.0)
    control = started[0]["control"]
    assert (control["replication_factor"], control["replication_factor_min"]) == (3, 2)


def test_whoever_ends_at_once_is_started_again_later_and_later_and_who_cannot_be_is_named() -> None:
    process_group, now = FakeProcessGroup(), 0.0
    with ExitStack() as held:
        keepers = RunCluster(
            *(ReplicatedClusterSettings(), cast(Any, process_group), cast(Any, FakeMessenger())),
            *(cast(Any, lambda name, role, arguments: name), held),
        )
        keepers.start_controller(now)
        keepers.start_server(now)
        while now < 60.0:  # as if its disk were full
            if process_group.started[-1].startswith("server"):
                keepers.on_exit(process_group.started.pop(), "was ended", now)
            assert keepers.restart_due(now) == []
            now += 0.1
        ((life, name),) = keepers._restarting.items()
        assert life == "server-0" and 8 < int(name.removeprefix("server-0.")) < 20, "not 600 times"
        assert process_group.started == [CONTROLLER]

        process_group.trouble = "no process can be made"
        keepers.on_exit(CONTROLLER, "was killed", now)
        assert (
            CONTROLLER,
            f"{CONTROLLER} cannot be started: {process_group.trouble}",
        ) in keepers.restart_due(now + 20)
        process_group.trouble = ""
        assert keepers.restart_due(now + 60) == [] and process_group.started == [CONTROLLER, name, CONTROLLER]
        keepers.on_exit(name, "was killed", now + 90)
        assert keepers.restart_due(now + 90) == [], "it has lived for long: at once"
        assert len(process_group.started) == 4


def test_controllers_are_told_of_an_end_that_was_seen_and_of_no_lost_contact() -> None:
    messenger, started = FakeMessenger(), FakeProcessGroup()
    with ExitStack() as held:
        keepers = RunCluster(
            *(ReplicatedClusterSettings(), cast(Any, started), cast(Any, messenger)),
            *(cast(Any, lambda name, role, arguments: name), held),
        )
        keepers.start_server(0.0)
        keepers.start_server(0.0)
        keepers.on_exit("server-0", "was lost with its machine", 1.0, is_seen=False)
        assert messenger.sent == [], "it may live: its lease decides"
        keepers.on_exit("server-1", "was killed by SIGKILL", 1.0)
        assert messenger.sent == [(CONTROLLERS, ServerExited("server-1", "was killed by SIGKILL"))]
        keepers.restart_due(60.0)
    assert started.started == ["server-0", "server-1", "server-0.1", "server-1.1"], "both are replaced"

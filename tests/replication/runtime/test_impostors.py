"""An impostor with the token, but without a server's key, cannot use the name of a server or a controller.

The controllers and servers are those of a cluster, on real sockets of this process. The impostor is an
endpoint with the same token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cotswold.host import Token
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.processes.supervisor_link import SupervisorLink
from cotswold.replication.client.endpoints import ClusterEndpoints
from cotswold.replication.client.routed_messenger import RoutedMessenger
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.metadata import MetadataLocation
from cotswold.replication.replica.group_member import ReplicaRole
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.replication.runtime.controller_process import ControllerProcess, MetadataThread
from cotswold.replication.runtime.networks import NetworkEndpoints
from cotswold.replication.runtime.server_process import ReplicaServerProcess
from cotswold.transport import Endpoint, Lost
from cotswold.transport.address import Address
from cotswold.wire import (
    CONTROLLERS,
    COORDINATOR,
    Create,
    DeleteRun,
    FenceReply,
    Heartbeat,
    LeaseGrant,
    LookupReply,
    LookupRequest,
    Prepare,
    PrimaryUnreachable,
    ServerExited,
    StatusReply,
    StatusRequest,
)
from cotswold.wire.messenger import AnyMessage, Messenger, Received
from lib.fuzz.descriptions import described

TOKEN = Token.new()
CONTROLLER, RUN = "controller-127.0.0.1-7400", "run"
FIRST, SECOND = "server-a-0", "server-b-0"
SECONDS = 10.0
Roles = ControllerProcess | ReplicaServerProcess


class Scene:
    """A controller with its metadata store, servers, and endpoints of a test; one thread serves all
    in turn.
    """

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self._state, self._held = MetadataLocation(sqlite=str(folder / "state.sqlite")), held
        self.station = self.endpoint(COORDINATOR)
        self.roles: dict[str, Roles] = {}
        self.leader: ControllerProcess
        """The newest controller."""
        self._heard: dict[Endpoint, list[AnyMessage]] = {}
        self._posts: dict[Endpoint, Messenger] = {}
        self.lost: list[str] = []
        """Dropped peers: ``PEER by NAME``."""

    def endpoint(self, name: str, **settings: Any) -> Endpoint:
        return self._held.enter_context(Endpoint(TOKEN, name, **settings))

    def controller(self) -> ControllerProcess:
        """Start a leading controller with the earlier metadata."""
        endpoint = self.endpoint(CONTROLLER, host="127.0.0.1", mode="curve")
        endpoint.connect(COORDINATOR, self.station.address)
        state = self._held.enter_context(MetadataThread(self._state))
        control = ControllerSettings(
            replication_factor=2, beat_seconds=0.01, retry_seconds=0.02, lease_seconds=SECONDS
        )
        supervisor_link = SupervisorLink(self.station.address, None)
        role = ControllerProcess(CONTROLLER, Messenger(endpoint), state, control, endpoint, supervisor_link)
        self.roles[CONTROLLER] = self.leader = role

        def leads() -> bool:
            role._machine.election._unchanged_since = float("-inf")  # nobody has led for long
            return role._machine.leads(time.monotonic())

        self.until(leads)
        return role

    @property
    def port(self) -> str:
        """Address at which servers call the controller."""
        host, _, port = self.leader._messenger.endpoint.address.split(" ")[4].rpartition(":")
        return str(Address.of_port(host.removeprefix("tcp://"), int(port)))

    def end(self, name: str) -> None:
        """End the process of a name."""
        self.roles.pop(name)._messenger.endpoint.close(0.0)

    def server(self, name: str, key: str) -> ReplicaServerProcess:
        endpoint = self.endpoint(name)
        endpoint.connect(COORDINATOR, self.station.address)
        role = ReplicaServerProcess(
            *(
                name,
                name.split("-")[1],
                Messenger(endpoint),
                {CONTROLLER: self.port},
                ReplicationSettings(beat_seconds=0.02),
            ),
            *(
                NetworkEndpoints(endpoint, endpoint, endpoint),
                SupervisorLink(self.station.address, None),
                key,
            ),
        )
        self.roles[name] = role
        return role

    def call(self, endpoint: Endpoint, name: str, address: str) -> Endpoint:
        """Let an endpoint call a peer, and record its messages."""
        self._posts[endpoint] = Messenger(endpoint)
        self._heard[endpoint] = []
        endpoint.connect(name, address)
        return endpoint

    def say(self, endpoint: Endpoint, to: str, message: AnyMessage) -> None:
        self._posts[endpoint].send(to, message)

    def heard_by(self, endpoint: Endpoint, kind: type) -> list[Any]:
        return [each for each in self._heard[endpoint] if isinstance(each, kind)]

    def serve(self) -> None:
        self.station.receive(0.0)
        for name, role in list(self.roles.items()):
            for _ in range(50):
                event = role._messenger.receive(0.0)
                if isinstance(event, Lost):
                    self.lost.append(f"{event.peer} by {name}")
                role._attend(event)
                if event is None:
                    break
            role._tick(time.monotonic())
            if isinstance(role, ControllerProcess):
                wish = role._machine.next_request(time.monotonic())
                if wish is not None:
                    role._state.submit(wish, role._on_result)
        for endpoint, messenger in self._posts.items():
            while (event := messenger.receive(0.0)) is not None:
                if isinstance(event, Received):
                    self._heard[endpoint].append(event.message)

    def until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not is_so():
            assert time.monotonic() < deadline, f"it does not come to that; {self.lost}"
            self.serve()
            time.sleep(0.001)

    def settled(self, endpoint: Endpoint, name: str, rounds: int = 100) -> None:
        """Serve until a peer has received or refused the endpoint's message."""
        self.until(lambda: not endpoint.has(name) or endpoint.version_of(name) is not None)
        for _ in range(rounds):
            self.serve()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as held:
        yield Scene(tmp_path, held)


def here(server: str, key: str, number: int = 1) -> Heartbeat:
    return Heartbeat(server, "evil", ADDRESS, number, (), key=key)


ADDRESS = str(Address("host", 1, "challenge", None, "tcp://127.0.0.1:9", "hmac"))


@pytest.fixture
def led(scene: Scene) -> Scene:
    """Return a controller with heartbeats of two servers."""
    controller = scene.controller()
    for name, key in ((FIRST, "key of a"), (SECOND, "key of b")):
        scene.server(name, key)
    scene.until(lambda: len(controller._machine.servers.live) == 2)
    return scene


def trained(scene: Scene) -> tuple[str, ReplicaServerProcess, ReplicaServerProcess]:
    """Return a bucket of a run, its primary and its secondary."""
    client = scene.call(scene.endpoint("coordinator.run"), CONTROLLER, scene.port)
    known = described(RUN)
    wanted, bucket = Create(RUN, known.text, known.buckets, 2), known.buckets[0]
    scene.say(client, CONTROLLER, wanted)

    def roles() -> list[ReplicaServerProcess]:
        servers = [scene.roles[name] for name in (FIRST, SECOND)]
        found = [each for each in servers if isinstance(each, ReplicaServerProcess)]
        wanted = (ReplicaRole.PRIMARY, ReplicaRole.SECONDARY)
        return [
            server
            for role in wanted
            for server in found
            if bucket in server._machine.copies and server._machine.copies[bucket].role is role
        ]

    scene.until(lambda: len(roles()) == 2 and roles()[0]._machine.copies[bucket].complete_followers)
    primary, secondary = roles()
    return bucket, primary, secondary


def test_nobody_is_refused_who_has_its_key(led: Scene) -> None:
    bucket, primary, _ = trained(led)
    for _ in range(3):
        primary._messenger.endpoint.drop(CONTROLLER)
        led.until(lambda: led.leader._endpoint.has(primary._name))
        primary._machine._heartbeat_at = float("-inf")  # its next beat is due
        led.until(lambda: primary._name in led.leader._authorization._speaking)
        led.until(lambda: primary._machine.copies[bucket].complete_followers)
    assert not any(role._messenger.endpoint.rejections["strangers"] for role in led.roles.values())


def test_a_server_that_has_not_proved_its_name_keeps_its_connections(scene: Scene) -> None:
    controller = scene.controller()
    for name, key in ((FIRST, "key of a"), (SECOND, "key of b")):
        ways = scene.server(name, key)._endpoints
        if name == FIRST:
            ways.updates.key = ""  # it says its key to controllers, and proves nothing when it calls
    scene.until(lambda: len(controller._machine.servers.live) == 2)
    trained(scene)
    assert not scene.lost
    assert not any(each._messenger.endpoint.rejections["strangers"] for each in scene.roles.values())
    assert [*controller._proved_keys] == [SECOND]


def test_an_impostor_takes_no_living_servers_place_at_a_controller(led: Scene) -> None:
    controller = led.leader
    impostor = led.call(led.endpoint(FIRST), CONTROLLER, led.port)
    led.say(impostor, CONTROLLER, here(FIRST, "a guess"))
    led.settled(impostor, CONTROLLER)
    assert f"{FIRST} by {CONTROLLER}" not in led.lost, "the server keeps its connection"
    assert controller._messenger.endpoint.rejections["strangers"], "the impostor is refused"


def test_whoever_has_the_name_of_a_silent_server_may_call_and_is_not_heard_without_its_key(
    led: Scene,
) -> None:
    controller = led.leader
    led.end(FIRST)
    keys = controller._authorization._keys
    led.until(lambda: keys[FIRST][0] == "key of a" and not controller._endpoint.has(FIRST))
    keys[FIRST] = keys[FIRST][0], time.monotonic() - 100.0
    led.until(lambda: FIRST not in controller._proved_keys)
    impostor = led.call(led.endpoint(FIRST), CONTROLLER, led.port)
    led.say(impostor, CONTROLLER, here(FIRST, "a guess"))
    led.say(impostor, CONTROLLER, StatusRequest(number=7))
    led.until(lambda: led.heard_by(impostor, StatusReply))
    assert controller._messenger.endpoint.rejections["strangers"] and not led.heard_by(impostor, LeaseGrant)


def test_a_controller_that_was_started_again_does_not_believe_the_first_key(led: Scene) -> None:
    trained(led)
    for name in (FIRST, SECOND, CONTROLLER):
        led.end(name)
    again = led.controller()
    impostor = led.call(led.endpoint(FIRST), CONTROLLER, led.port)
    for number in (1, 2):
        led.say(impostor, CONTROLLER, here(FIRST, "a guess", number))
    led.say(impostor, CONTROLLER, StatusRequest(number=7))
    led.until(lambda: led.heard_by(impostor, StatusReply))
    assert not led.heard_by(impostor, LeaseGrant)
    events = [
        each.sentence
        for each in led.heard_by(impostor, StatusReply)[0].events
        if each.kind == "unknown_server"
    ]
    assert len(events) == 1 and events[0].startswith(f"a process uses the name {FIRST} without")
    assert again._machine.servers.of[FIRST].last_heartbeat is None
    led.server(FIRST, "key of a")
    led.until(lambda: again._machine.servers.of[FIRST].last_heartbeat is not None)


def test_a_controller_that_was_started_again_believes_no_end_without_the_key(led: Scene) -> None:
    trained(led)
    led.end(CONTROLLER)
    again = led.controller()  # to which no server finds: it has another port
    again._authorization._started_at -= 60.0
    impostor = led.call(led.endpoint("station-0f/a"), CONTROLLER, led.port)
    led.say(impostor, CONTROLLER, ServerExited(FIRST, "because I say so", "a guess"))
    led.say(impostor, CONTROLLER, StatusRequest(number=7))
    led.until(lambda: led.heard_by(impostor, StatusReply))
    assert not again._machine.servers.of[FIRST].has_exited
    led.say(impostor, CONTROLLER, ServerExited(FIRST, "was killed by SIGKILL", "key of a"))
    led.until(lambda: again._machine.servers.of[FIRST].has_exited)


def test_nothing_is_heard_of_a_server_that_has_not_said_its_key_on_this_connection(led: Scene) -> None:
    bucket, *_ = trained(led)
    led.end(CONTROLLER)
    again = led.controller()
    before = again._machine.groups[bucket]
    impostor = led.call(led.endpoint(before.primary), CONTROLLER, led.port)
    said = (
        FenceReply(bucket, before.term + 1, before.primary, before.term, 1 << 40),
        PrimaryUnreachable(bucket, before.term, before.primary, before.secondaries[0]),
    )
    for each in said:
        led.say(impostor, CONTROLLER, each)
    led.say(impostor, CONTROLLER, StatusRequest(number=7))
    led.until(lambda: led.heard_by(impostor, StatusReply))
    assert again._messenger.endpoint.rejections["early"] == len(said)


def spied(role: ReplicaServerProcess) -> list[tuple[str, AnyMessage]]:
    """Return a list that receives a server's messages from now on."""
    heard, right = [], role._on_message

    def hear(sender: str, message: AnyMessage) -> None:
        heard.append((sender, message))
        right(sender, message)

    role._on_message = hear  # type: ignore[method-assign]  # it sees what comes
    return heard


@pytest.mark.parametrize("is_primary", [True, False])
def test_an_impostor_is_no_member_of_a_group(led: Scene, *, is_primary: bool) -> None:
    bucket, primary, secondary = trained(led)
    victim, other = (secondary, primary) if is_primary else (primary, secondary)
    heard = spied(victim)
    impostor = led.call(led.endpoint(other._name), victim._name, victim._messenger.endpoint.address)
    term = victim._machine.copies[bucket].group.term
    lie = Prepare(bucket, term, 1 << 20, 1 << 21, 1 << 20, None)
    led.say(impostor, victim._name, lie)
    led.settled(impostor, victim._name)
    assert (other._name, lie) not in heard
    assert victim._messenger.endpoint.rejections["strangers"]
    led.until(lambda: primary._machine.copies[bucket].complete_followers)


def test_an_impostor_with_the_address_of_a_controller_is_no_controller(led: Scene) -> None:
    victim, controller = led.roles[FIRST], led.leader
    assert isinstance(victim, ReplicaServerProcess)
    heard = spied(victim)
    impostor = led.endpoint(CONTROLLER)
    impostor._address = Address.parsed(controller._messenger.endpoint.address)
    led.call(impostor, FIRST, victim._messenger.endpoint.address)
    lie = DeleteRun(1 << 40, RUN)
    led.say(impostor, FIRST, lie)
    led.settled(impostor, FIRST)
    assert (CONTROLLER, lie) not in heard and victim._messenger.endpoint.rejections["strangers"]
    assert f"{CONTROLLER} by {FIRST}" not in led.lost


def test_a_client_hears_nobody_whom_it_has_not_called(led: Scene) -> None:
    outward = ClusterEndpoints("replica-1", RUN, EndpointSettings(), TOKEN)
    with Endpoint(TOKEN, "replica-1") as own:
        messenger = RoutedMessenger(own, {CONTROLLER: led.port}, outward)
        messenger.send(CONTROLLER, LookupRequest((), number=3))
        way = outward.endpoint_to(led.port)
        for name in (CONTROLLER, FIRST):
            impostor = led.call(led.endpoint(name), way.name, way.address)
            led.say(impostor, way.name, LookupReply((), (), 3))
            deadline = time.monotonic() + SECONDS
            while impostor.has(way.name) or not way.rejections["strangers"]:
                assert time.monotonic() < deadline, f"{name} is heard"
                event = messenger.receive(0.0)
                led.serve()
                assert not (isinstance(event, Received) and event.sender == FIRST)
        messenger.endpoint.close(0.0)


def test_a_process_of_a_run_takes_no_servers_place_at_another(led: Scene) -> None:
    bucket, primary, _ = trained(led)
    outward = ClusterEndpoints("replica-1", RUN, EndpointSettings(), TOKEN)
    with Endpoint(Token.new(), "replica-1") as own:
        token = own._keyring
        messenger = RoutedMessenger(own, {CONTROLLER: led.port}, outward)
        impostors = [Endpoint(token, name) for name in (primary._name, CONTROLLER)]
        for each in impostors:
            each.connect("replica-1", own.address)
        deadline = time.monotonic() + SECONDS
        messenger.connect([(bucket, "")])
        while own.has(primary._name) or own.rejections["strangers"] < 2 or messenger.unknown:
            assert time.monotonic() < deadline, own.peers
            messenger.send(CONTROLLERS, LookupRequest(((bucket, 0),)))
            assert not isinstance(messenger.receive(0.0), Received)
            led.serve()
        for each in impostors:
            each.close(0.0)
        messenger.endpoint.close(0.0)

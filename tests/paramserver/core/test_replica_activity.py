"""Activity that a replica reports, by its states only, without a server."""

from __future__ import annotations

from cotswold.paramserver.core.replica import Replica
from cotswold.paramserver.core.replica_session import Pace
from cotswold.paramserver.core.update_sequence import ServerUpdate
from cotswold.wire import (
    COORDINATOR,
    Applied,
    Join,
    PulledNewer,
    PullNewer,
    ReplicaInstructions,
    Send,
    SessionOpened,
    Shard,
    Shutdown,
    Update,
)

SHARDS = (Shard(0, "a", 0, 4, "w", 0), Shard(1, "b", 4, 8, "w", 1))
PARTS = {name: ServerUpdate("gradient", (number,), (), ((0.0,) * 4,)) for number, name in enumerate("ab")}


def admitted(pace: Pace | None = None) -> Replica:
    replica = Replica(Join("one", 0, "there", 100, 8), pace or Pace(10))
    replica.tick(0.0)
    replica.receive(
        COORDINATOR, SessionOpened("one", 0, 1, "run", SHARDS, (("a", "A"), ("b", "B")), 0.1, 1.0, "{}"), 0.0
    )
    return replica


def answer(replica: Replica, sends: list[Send], only: str = "ab") -> list[Send]:
    """Let servers answer the messages of a replica."""
    found = []
    for each in sends:
        message = each.message
        if each.to not in only:
            continue
        if isinstance(message, PullNewer):
            versions = tuple(version + 1 for version in message.versions)
            pulled = PulledNewer(1, each.to, message.number, message.shards, versions, ((0.0,) * 4,))
            found += replica.receive(each.to, pulled, 0.0)
        elif isinstance(message, Update):
            found += replica.receive(
                each.to, Applied(1, each.to, message.number, message.shards, (1,), 0), 0.0
            )
    return found


def doing(replica: Replica) -> tuple[str, tuple[str, ...]]:
    return replica.activity


def pulls(replica: Replica) -> list[Send]:
    assert replica._session is not None
    return [Send(server, pull) for server, pull in replica._session.pulling.items()]


def pushes(replica: Replica) -> list[Send]:
    assert replica._session is not None
    return [Send(server, update) for server, update in replica._session.updates.unanswered.items()]


def test_a_replica_names_whom_it_waits_for_in_every_state() -> None:
    fresh = Replica(Join("one", 0, "there", 100, 8), Pace(10))
    assert doing(fresh) == ("joining", (COORDINATOR,))
    replica = admitted()
    assert doing(replica) == ("pulling", ("a", "b"))
    answer(replica, pulls(replica), "a")
    assert doing(replica) == ("pulling", ("b",)), "a has answered"
    answer(replica, pulls(replica))
    assert doing(replica) == ("idle", (COORDINATOR,))
    replica.receive(COORDINATOR, ReplicaInstructions(1, ((1, 0, 20),), 1, 0.1, 0), 0.0)
    assert replica.task() is not None
    assert doing(replica) == ("computing", ())
    replica.finish_step(PARTS, 0.0)
    assert doing(replica) == ("computing", ()), "steps go on while a push is under way"
    assert replica.task() is not None
    replica.finish_step(PARTS, 0.0)
    assert doing(replica) == ("pushing", ("a", "b")), "a third accumulation has no room"
    answer(replica, pushes(replica), "b")
    assert doing(replica) == ("pushing", ("a",))
    replica.receive(COORDINATOR, Shutdown(1), 0.0)
    assert doing(replica) == ("exiting", ())


def test_a_marker_does_not_say_that_nothing_is_computed_but_an_empty_update_behind_it_does() -> None:
    replica = admitted()
    answer(replica, pulls(replica))
    marker = replica.receive(COORDINATOR, ReplicaInstructions(1, (), 1, 0.1, 1), 0.0)
    assert [each.message.checkpoint for each in marker if isinstance(each.message, Update)] == [1, 1]
    answer(replica, marker)
    rest = [each.message for each in replica.tick(5.0) if isinstance(each.message, Update)]
    assert [(each.number, each.checkpoint, each.shards) for each in rest] == [(2, 1, ())] * 2


def test_a_pull_beside_a_marker_names_the_update_that_is_computed_from_it() -> None:
    replica = admitted(Pace(10, n_push=2))
    answer(replica, pulls(replica))
    replica.receive(COORDINATOR, ReplicaInstructions(1, ((1, 0, 40),), 1, 0.1, 0), 0.0)
    assert replica.task() is not None
    replica.receive(COORDINATOR, ReplicaInstructions(1, (), 1, 0.1, 1), 0.0)
    assert {each.message.number for each in pushes(replica) if isinstance(each.message, Update)} == {1}
    sends = replica.finish_step(None, 0.0)  # the marker is not answered
    assert {each.message.number for each in sends if isinstance(each.message, PullNewer)} == {1}


def test_a_replica_knows_the_next_steps_of_its_assignments() -> None:
    replica = admitted()
    assert replica.upcoming(4) == []
    answer(replica, pulls(replica))
    replica.receive(COORDINATOR, ReplicaInstructions(1, ((1, 0, 25), (2, 40, 60)), 1, 0.1, 0), 0.0)
    task = replica.task()
    assert task is not None and task.samples == (0, 10)
    assert replica.upcoming(3) == [(10, 20), (20, 25), (40, 50)]
    assert replica.upcoming(9) == [(10, 20), (20, 25), (40, 50), (50, 60)]
    replica.finish_step(PARTS, 0.0)
    task = replica.task()
    assert task is not None and task.samples == (10, 20)
    assert replica.upcoming(1) == [(20, 25)]
    replica.receive(COORDINATOR, Shutdown(1), 0.0)
    assert replica.upcoming(4) == []

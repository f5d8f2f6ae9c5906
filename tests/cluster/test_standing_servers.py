"""What a run hears of the cluster on which it is: of itself and of servers, and only what is new."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cotswold.cluster import TroubleError
from cotswold.cluster.bucket_conversation import BucketConversation
from cotswold.cluster.routed_post import RoutedPost
from cotswold.cluster.standing import StandingServers
from cotswold.server.messages import Create, EventSeen, Looked, Remove

OWN, OTHER = "c83a0b833eac6e20", "17aa0b833eac6e99"


def looked(*events: EventSeen) -> Looked:
    return Looked("controller", 1, 3, 1, (), (), (), 0, events)


def elected(seconds: float, run: str) -> EventSeen:
    sentence = f"bucket 3 of {run}: primary a ended (killed); secondary b took over, term 2, in 3 ms"
    return EventSeen(seconds, "elected", "b", sentence, run, (("b", 1),))


class Unheard:
    """A post of which nothing comes back."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, to: str, message: object) -> bool:
        self.sent.append(message)
        return True

    def seek(self) -> None:
        pass


def test_that_no_controller_answers_is_told_once_and_that_one_does_again() -> None:
    servers = StandingServers(cast(RoutedPost, Unheard()), {"controller-a": ""}, OWN)
    now, told = time.monotonic(), []
    assert not servers.trouble(now + 10), "none was asked"
    for second in range(12):
        servers.look(now + second)
        told.append(servers.trouble(now + second))
    (said,) = filter(None, told)
    assert (
        said == "no controller that leads has answered for 4 s, of controller-a: pushes wait until one does"
    )
    servers.happened(looked())
    assert servers.trouble(time.monotonic()) == "a controller that leads answers again"
    assert not servers.trouble(time.monotonic())


def test_a_run_is_told_of_itself_and_of_what_befalls_servers_since_it_began() -> None:
    servers = StandingServers(cast(RoutedPost, None), {}, OWN)
    own, others = elected(0.1, OWN), elected(0.1, OTHER)
    before = EventSeen(50.0, "lost", "server-a", "server-a ended: killed", "", ())
    time.sleep(0.05)
    assert servers.happened(looked(before, own, others)) == [own], "no other run, nothing from before"
    since = EventSeen(0.01, "lost", "server-b", "server-b ended: killed", "", ())
    assert servers.happened(looked(before, own, others, since)) == [since]
    assert not servers.happened(looked(before, own, others, since))


def test_what_a_run_was_called_is_known_until_a_controller_has_removed_it(tmp_path: Path) -> None:
    """Whoever ends before it could ask, or is answered, leaves nothing behind."""

    def begun(run: str) -> tuple[StandingServers, Unheard]:
        post = Unheard()
        return StandingServers(cast(RoutedPost, post), {}, run, tmp_path / "note"), post

    begun("first")
    begun("second")  # which ends at once
    servers, post = begun("third")
    servers.create(Create("third", "", (), 1))
    assert post.sent[:-1] == [Remove("second"), Remove("first")]
    servers.removed("first")
    servers, post = begun("fourth")
    servers.look(time.monotonic())
    assert post.sent[1:] == [Remove("third"), Remove("second")]
    for run in ("second", "third", "another"):
        servers.removed(run)
    begun("fifth")
    servers, post = begun("sixth")
    servers.look(time.monotonic())
    assert post.sent[1:] == [Remove("fifth"), Remove("fourth")]


def test_a_run_whose_buckets_nobody_makes_is_told_where_it_is_seen_why() -> None:
    conversation = BucketConversation.__new__(BucketConversation)
    conversation.outlived = True
    conversation._keepers = cast(
        StandingServers, SimpleNamespace(post=SimpleNamespace(unknown=("run/0000",)))
    )
    with pytest.raises(TroubleError, match="the controllers refuse this run; see cotswold cluster status"):
        conversation.create(Create("run", "", ("run/0000",), 1), 0.0)

"""Servers that keep copies, and their controller: whom they are told of."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

from cotswold.cluster.keepers import CONTROLLER, Keepers
from cotswold.cluster.messages import Controllers, Serving
from cotswold.cluster.settings import ClusterSettings


class Post:
    def __init__(self) -> None:
        self.sent: list[tuple[str, object]] = []

    def send(self, to: str, message: object) -> None:
        self.sent.append((to, message))

    def find(self, controllers: object) -> None:
        pass


def test_a_server_that_is_there_later_than_a_controller_that_was_started_again_hears_of_it() -> None:
    post = Post()
    with ExitStack() as held:
        keepers = Keepers(ClusterSettings(), cast(Any, None), cast(Any, post), cast(Any, None), held)
        keepers.heard(Serving(CONTROLLER, "tcp://controller"), ["server-0"])
        keepers.heard(Serving("server-1", "tcp://server"), ["server-0"])
    told = Controllers(((CONTROLLER, "tcp://controller"),))
    assert post.sent == [("server-0", told), ("server-1", told)]


def test_a_controller_knows_with_how_few_copies_updates_wait() -> None:
    started: list[dict[str, Any]] = []

    class Staff:
        def start(self, call: dict[str, Any]) -> None:
            started.append(call)

    settings = ClusterSettings(servers=3, server_copies=3, server_copies_min=2)
    with ExitStack() as held:
        call = cast(Any, lambda name, role, told: told)
        Keepers(settings, cast(Any, Staff()), cast(Any, Post()), call, held).start_controller()
    assert (started[0]["control"]["copies"], started[0]["control"]["least"]) == (3, 2)

"""Messengers that route to buckets: other messages pass as in any messenger."""

from __future__ import annotations

from contextlib import closing

from cotswold.host import Token
from cotswold.replication.client.routed_messenger import RoutedMessenger
from cotswold.transport import Endpoint
from cotswold.wire import CONTROLLERS, LookupRequest
from cotswold.wire.lifecycle import GetParameters


def test_who_is_no_server_and_not_connected_is_not_taken_for_having_heard() -> None:
    with closing(Endpoint(Token.new(), "coordinator")) as endpoint:
        messenger = RoutedMessenger(endpoint, {"controller-0": ""})
        assert not messenger.send("evaluator-1", GetParameters()), "who asks says it again once it is there"
        assert messenger.send(CONTROLLERS, LookupRequest(())), "they are found, and asked again"

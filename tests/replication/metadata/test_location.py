"""Location of the controllers' metadata."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from tests.replication.metadata.test_etcd_http import Member, trickle
from tests.replication.metadata.test_etcd_http import two as two

from cotswold.errors import UserError
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.metadata import MetadataLocation, OutcomeUnknownError
from cotswold.replication.replica.lease import DRIFT


def test_a_leader_asks_another_member_while_it_still_leads(two: tuple[Member, Member]) -> None:
    two[0].reply = trickle  # it is there, and does not answer
    control, place = ControllerSettings(), MetadataLocation(etcd=[each.endpoint for each in two])
    with closing(place.open()) as state:
        began = time.monotonic()
        try:
            state.transact([], [("leader-beat", "1")])
        except OutcomeUnknownError:
            assert state.transact([], [("leader-beat", "1")])
        waited = time.monotonic() - began
    assert control.beat_seconds + waited < control.leader_seconds * (1 - DRIFT)


def test_a_prefix_that_leaves_no_room_for_names_is_refused() -> None:
    MetadataLocation(etcd=("localhost:2379",), prefix="p" * 128)
    with pytest.raises(UserError, match="at most"):
        MetadataLocation(etcd=("localhost:2379",), prefix="\u20ac" * 43)

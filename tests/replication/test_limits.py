"""Runs whose servers could not exchange their contents."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.support.replicas.opened_replicas import SIZE, Opener
from tests.support.replicas.opened_replicas import opened as opened

from cotswold.errors import UserError
from cotswold.optim.server_rules import Adagrad, Rule, Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.update_loop import settings_as_dict
from cotswold.replication import limits as fitting
from cotswold.replication.limits import check_description, check_messages
from cotswold.replication.run_description import Description
from cotswold.replication.runtime.authorization import rejection_reason
from cotswold.shards.core.versions import version_after_restarts
from cotswold.transport import Endpoint
from cotswold.wire import Create

MIB = 1 << 20
ROWS = 1024
"""Rows of a tensor of 1 GiB."""


def described(count: int, rule: Rule, shard_bytes: int = MIB, rows: int = ROWS) -> Description:
    settings = AsyncSettings("run", "x", rule, {"weights": 1 << 18}, 4, QueueLimits(1, 1), Staleness())
    return Description(
        "run", (("weights", rows, 1 << 18),), "float32", shard_bytes, count, settings_as_dict(settings)
    )


@pytest.mark.parametrize(("rule", "vectors", "fits"), [(Sgd(), 1, 2), (Adagrad(), 2, 4)])
def test_of_a_run_whose_buckets_are_too_long_for_messages_it_is_said_how_many_there_must_be(
    rule: Rule, vectors: int, fits: int
) -> None:
    check_messages(described(fits, rule), vectors, 1024 * MIB)
    with pytest.raises(UserError, match=r"cluster\.max_buckets = ") as caught:
        check_messages(described(fits - 1, rule), vectors, 1024 * MIB)
    found = re.search(r"buckets = (\d+)", str(caught.value))
    assert found is not None
    check_messages(described(int(found[1]), rule), vectors, 1024 * MIB)


def test_shards_that_are_too_long_for_messages_are_named() -> None:
    with pytest.raises(UserError, match=r"training\.shard_kilobytes"):
        check_messages(described(64, Adagrad(), 600 * MIB), 2, 1024 * MIB)


def test_of_a_run_that_could_never_be_resumed_it_is_said_how_large_its_shards_must_be() -> None:
    """The versions of its shards would make its description too long."""
    begins = described(64, Sgd(), 4096, 1 << 16)
    with pytest.raises(UserError, match=r"training\.shard_kilobytes = ") as caught:
        check_description(begins)
    found = re.search(r"shard_kilobytes = (\d+)", str(caught.value))
    assert found is not None
    larger = described(64, Sgd(), 1024 * int(found[1]), 1 << 16)
    check_description(larger)
    resumed = replace(larger, versions=(version_after_restarts(10_000, 9),) * len(larger.shards))
    assert not rejection_reason("coordinator", Create("run", resumed.text, resumed.buckets, 1))
    check_description(replace(begins, versions=(7,) * len(begins.shards)))
    longest = replace(begins, versions=(12_345_678,) * len(begins.shards))
    with pytest.raises(UserError, match="letters"):
        check_description(longest)
    assert rejection_reason("coordinator", Create("run", longest.text, longest.buckets, 1)) == "oversized"


def test_a_network_of_too_many_tensors_is_refused_before_the_run_begins() -> None:
    layout = tuple((f"weights {number}", 2, 2) for number in range(20_000))
    with pytest.raises(UserError, match="servers without copies"):
        check_description(replace(described(64, Sgd()), layout=layout))


def test_servers_that_could_send_no_copy_are_not_started(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []
    made = Endpoint.__init__

    def narrow(*given: Any, **more: Any) -> None:
        made(*given, **{**more, "message_bytes": 1024})

    monkeypatch.setattr(Endpoint, "__init__", narrow)
    with pytest.raises(UserError, match=r"cluster\.max_buckets = "):
        opened(events=events, servers=2, copies=2, buckets=1, rule=Adagrad(), arguments={"size": 4 * SIZE})


def test_servers_of_a_run_that_controllers_would_refuse_are_not_started(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "MAX_DESCRIPTION_CHARS", 10)
    with pytest.raises(UserError, match="at most 10 fit"):
        opened(servers=2, copies=2)

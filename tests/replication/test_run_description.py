"""A server's knowledge of a run's buckets before they exist."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cotswold.ops import updates
from cotswold.optim.server_rules import Adagrad, Momentum, Rule, Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.update_loop import settings_as_dict, settings_from_dict
from cotswold.replication.run_description import MAX_NAME_CHARS, Description, display_name
from cotswold.replication.runtime import controller_process as role
from cotswold.replication.runtime.authorization import rejection_reason
from cotswold.shards.runtime.arithmetic import raw
from cotswold.wire import (
    COORDINATOR,
    Assign,
    CoordinatorState,
    Create,
    DeleteRunRequest,
    Group,
    Prepare,
    RunDescription,
    Send,
    StatusReply,
    StatusRequest,
    Write,
)
from cotswold.wire.messenger import Received
from lib.fuzz.controller import ControllerTarget
from lib.fuzz.parameter_server import CONTROLLER, OWN, RUN, ServerTarget


def described(rule: Rule, dtype: str, shard_bytes: int = 64, count: int = 2) -> Description:
    settings = AsyncSettings("run", "x", rule, {"weights": 4}, 4, QueueLimits(1 << 20, 1 << 20), Staleness())
    return Description("run", (("weights", 32, 4),), dtype, shard_bytes, count, settings_as_dict(settings))


def created(run: str) -> Create:
    settings = {**described(Sgd(), "float32").updates, "run": run}
    whole = replace(described(Sgd(), "float32"), run=run, updates=settings)
    return Create(run, whole.text, (f"{run}/0000", f"{run}/0001"), 1)


LONG = json.dumps([0] * 10) + "\u20ac" * 500_000
"""A text with fewer than 600,000 letters and more than 1 MiB."""


@pytest.mark.parametrize("rule", [Sgd(), Momentum(0.9), Adagrad()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_the_first_update_of_a_run_loads_is_loaded_before_there_is_one(rule: Rule, dtype: str) -> None:
    updates._shard.cache_clear()
    described(rule, dtype).check()
    assert updates._shard.cache_info().currsize == 1


@pytest.mark.parametrize(("shard_bytes", "buffers"), [(128, 1), (48, 11), (1024, 1)])
def test_a_secondary_takes_what_its_primary_sends_whatever_shards_the_bucket_has(
    shard_bytes: int, buffers: int
) -> None:
    """Shards that fill cache lines are adjacent, and are sent as one buffer."""
    run = described(Sgd(), "float32", shard_bytes, 1)
    (bucket,) = run.buckets
    primary, secondary = run.contents(bucket), run.contents(bucket)
    rows = [np.arange(each.start, each.stop, dtype=np.float32) for each in run.shards]
    numbers = tuple(each.number for each in run.shards)
    primary.receive(COORDINATOR, Write(1, "x", numbers, tuple(map(raw, rows))))
    assert primary.bump_index()
    told = primary.changes_since(-1)
    prepare = Prepare(bucket, 1, -1, 1, 0, told.change, told.names, told.buffers)
    assert len(told.buffers) == buffers and secondary.can_apply(prepare, None)
    secondary.install(prepare)
    assert all(map(np.array_equal, secondary.vectors["x"], rows))
    for other in (told.buffers[1:], (*told.buffers, bytes(4)), (bytes(8), *told.buffers[1:])):
        assert not secondary.can_apply(replace(prepare, buffers=other), None)


def test_a_vector_that_is_written_after_a_state_was_frozen_was_zeros_then() -> None:
    run = described(Sgd(), "float32", 128, 1)
    (bucket,) = run.buckets
    primary, secondary = run.contents(bucket), run.contents(bucket)
    numbers = tuple(each.number for each in run.shards)
    ones = tuple(np.ones(each.stop - each.start, np.float32).tobytes() for each in run.shards)
    primary.receive(COORDINATOR, Write(1, "x", numbers, ones))
    primary.receive(COORDINATOR, CoordinatorState(1, ((1, "replica"),), ((1, 0.1),), 1, 0))
    assert primary.bump_index() and primary.updates.frozen is not None, "nobody owes a marker"
    primary.receive(COORDINATOR, Write(2, "late", numbers, ones))
    assert primary.bump_index()
    told = primary.changes_since(-1)
    prepare = Prepare(bucket, 1, -1, primary.index, 0, told.change, told.names, told.buffers)
    assert secondary.can_apply(prepare, None)
    secondary.install(prepare)
    frozen = secondary.updates.frozen
    assert frozen is not None and not np.any(np.concatenate(frozen.vectors["late"]))
    assert np.all(np.concatenate(frozen.vectors["x"]) == 1)
    assert np.all(np.concatenate(secondary.vectors["late"]) == 1)


def spoilt(*places: object, to: object) -> str:
    """Return a valid description with another value in one place."""
    whole: Any = json.loads(described(Momentum(0.9), "float32").text)
    inner: Any = whole
    for each in places[:-1]:
        inner = inner[each]
    inner[places[-1]] = to
    return json.dumps(whole)


LAYER = [0, *(1, 8, 8), *(1, 1, 0, 0), *(1, 1, 0, 0), *(1, 1, 1)]
"""The offset, and a layer of 8 times 8 filters of one number."""
SPOILT: Mapping[str, str] = {
    "a fraction of buckets": spoilt("count", to=1.5),
    "a truth as buckets": spoilt("count", to=True),
    "a fraction of bytes": spoilt("shard_bytes", to=64.5),
    "a run without a name": spoilt("run", to=""),
    "a run of another name": spoilt("run", to="other"),
    "a recipe that is a number": spoilt("name", to=7),
    "a recipe with a name that is too long": spoilt("name", to="r" * 101),
    "two tensors of a name": spoilt("layout", to=[["weights", 16, 4], ["weights", 16, 4]]),
    "half a letter": spoilt("updates", "name", to="\ud800"),
    "a version that is too high to say": spoilt("versions", to=[1 << 70]),
    "no columns": spoilt("updates", "columns", to={}),
    "other columns": spoilt("updates", "columns", "weights", to=3),
    "columns that are true": spoilt("updates", "columns", "weights", to=4.0),
    "a number of negative bytes": spoilt("updates", "item_bytes", to=-4),
    "a number of x bytes": spoilt("updates", "item_bytes", to="x"),
    "room of texts": spoilt("updates", "room", to={"shard_bytes": "1", "all_bytes": "1"}),
    "a vector that is a number": spoilt("updates", "name", to=3),
    "a vector that the rule keeps": spoilt("updates", "name", to="velocity"),
    "no geometry": spoilt("updates", "products", to={"weights": []}),
    "half a geometry": spoilt("updates", "products", to={"weights": LAYER[:5]}),
    "geometry of texts": spoilt("updates", "products", to={"weights": "0" * len(LAYER)}),
    "geometry of another tensor": spoilt("updates", "products", to={"weights": LAYER}),
    "geometry of no tensor": spoilt("updates", "products", to={"others": LAYER}),
    "no steps": spoilt("updates", "schedule", "samples", to=0),
    "a schedule of nobody": spoilt("updates", "schedule", "schedule", to="x"),
    "a warmup without an end": spoilt("updates", "schedule", "warmup", to=float("inf")),
    "a staleness that is no number": spoilt("updates", "staleness", "bound", to=float("nan")),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_description_of_what_cannot_be_made_or_updated_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match="malformed description of a run"):
        Description.of(SPOILT[what])


def test_a_description_is_read_as_it_was_written_with_the_geometry_of_a_layer() -> None:
    settings = settings_as_dict(
        settings_from_dict({**described(Sgd(), "float32").updates, "columns": {"filters": 8}})
    )
    settings["products"] = {"filters": LAYER}
    whole = Description("run", (("filters", 8, 8),), "float32", 64, 2, settings, (), "digits")
    found = Description.of(whole.text)
    nameless = ("", "[]", "{}", '{"name": 3}', r'{"name": "\ud800"}')
    assert display_name(whole.text) == "digits" and not any(map(display_name, nameless))
    assert len(display_name(json.dumps({"name": "n" * 1000}))) == MAX_NAME_CHARS
    assert found.text == whole.text and found.contents(found.buckets[0]).updates.settings.products


def check_refused(text: str) -> None:
    victim = ServerTarget()
    before, told = victim.counts()["malformed"], victim._post.sent["EventReport"]
    for _ in range(2):
        victim.attend(
            Received(CONTROLLER, RunDescription("new", text.replace('"run": "run"', '"run": "new"')))
        )
        victim.attend(Received(CONTROLLER, Assign(1, Group("new/0000", 1, OWN, ()))))
    assert "new" not in victim._role._runs and "new/0000" not in victim._machine.copies
    assert victim.counts()["malformed"] == before + 2 and victim._post.sent["EventReport"] == told + 1
    victim.check()


@pytest.mark.parametrize("what", SPOILT)
def test_a_server_refuses_says_and_counts_a_wrong_description_and_goes_on(what: str) -> None:
    check_refused(SPOILT[what])


@pytest.mark.parametrize("what", ["a fraction of buckets", "no geometry", "half a geometry"])
def test_a_server_makes_a_bucket_of_a_run_before_it_knows_it(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So errors that no check anticipates do no harm either."""
    monkeypatch.setattr(Description, "_check", lambda _: None)
    check_refused(SPOILT[what])


def test_whoever_looks_at_a_cluster_hears_what_the_controller_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victim, told = ControllerTarget(), list[Send]()
    monkeypatch.setattr(victim._post, "deliver", told.extend)
    victim.attend(Received("coordinator", created("r" * 600)))
    victim.attend(Received("operator", StatusRequest()))
    (looked,) = [each.message for each in told if isinstance(each.message, StatusReply)]
    assert looked.refused == (("oversized", 1),) and looked.process == os.getpid()


def test_whoever_looks_hears_what_people_call_each_run_and_no_description_is_read_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victim, told, read = ControllerTarget(), list[Send](), list[str]()
    monkeypatch.setattr(victim._post, "deliver", told.extend)
    monkeypatch.setattr(role, "display_name", lambda text: read.append(text) or display_name(text))  # type: ignore[func-returns-value]  # then the name
    named = created("named")
    text = json.dumps({**json.loads(named.description), "name": "digits"})
    victim.attend(Received("coordinator", replace(named, description=text)))
    for _ in range(8):
        victim.turn()
    victim.attend(Received("operator", StatusRequest(number=3)))
    victim.attend(Received("operator", StatusRequest(number=4)))
    first, second = [each.message for each in told if isinstance(each.message, StatusReply)]
    assert {each.run: each.name for each in first.runs} == {RUN: "", "named": "digits"}
    assert second.runs == first.runs and (first.number, second.number) == (3, 4) and len(read) == 2
    victim.attend(Received("coordinator", DeleteRunRequest("named")))
    for _ in range(8):
        victim.turn()
    victim.attend(Received("operator", StatusRequest()))
    assert list(victim._role._run_names) == [RUN]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("oversized", created("r" * 600)),
        ("oversized", created("\u20ac" * 130)),
        ("oversized", replace(created("run"), description=LONG)),
        ("malformed", replace(created("run"), buckets=("run/0000",) * 2)),
        ("malformed", created("")),
        ("malformed", created("../../x")),
        ("malformed", created("..")),
        ("", created("r" * 300)),
    ],
    ids=[
        "600 letters",
        "390 bytes",
        "a long description",
        "a bucket twice",
        "no name",
        "a path",
        "dots",
        "300 letters",
    ],
)
def test_a_controller_hears_of_no_run_that_the_state_would_not_take(kind: str, wanted: Create) -> None:
    assert rejection_reason("coordinator", wanted) == kind
    victim = ControllerTarget()  # whose state takes what others take
    victim.attend(Received("coordinator", wanted))
    for _ in range(6):
        victim.turn()
    assert victim.counts()[kind] == (1 if kind else 0)
    assert (wanted.run in victim._machine._state.view.map.runs) == (not kind or wanted.run == "run")
    victim.check()

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from tests.support.bench.small_cases import SMALLEST

from cotswold.bench.case import Case, select_cases
from cotswold.bench.measure import Spread
from cotswold.bench.ranks.pool import RankPool
from cotswold.bench.ranks.rank import PoolRank
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey
from cotswold.errors import UserError
from cotswold.geometry import Grid, StackPartition
from cotswold.mesh.transport.connect import SOCKETS_SWITCH, SWITCH
from lib.scaling import cases as scaling
from lib.scaling import messages as scaling_messages
from lib.scaling.messages import Waits, plans_of_step, without_messages
from lib.scaling.plots import PLOTS
from lib.scaling.shapes import PAPER, Fields
from lib.scaling.speed import ONE, TWO_APART, Alone, Speed, alone, speed
from lib.scaling.stacks import RULE, random_images, share_of

LITTLE = Fields("little", field=6, channels=2, depth=2, weak=2, strong=4, far=2, own=4, images=4)
MEMORY_MOST = 6 << 30


def sent_bytes(rank: PoolRank, grid: str, first: bool) -> tuple[int, int]:
    """Return the bytes that a step sends, and those that it sends without messages."""
    geometry = LITTLE.stack(4, 4)
    stack, x = share_of(rank, grid, geometry, random_images(geometry, LITTLE.images), first)
    send, counted = dist.batch_isend_irecv, [0]

    def counting(messages: list[dist.P2POp]) -> list[dist.Work]:
        counted[0] += sum(one.tensor.nbytes for one in messages if one.op is dist.isend)
        return send(messages)

    def step() -> None:
        stack.step(x, stack.objective_settings, RULE)

    with scaling_messages.messages_by(counting):
        step()
        of_step = counted[0]
        without_messages(step)()
    return of_step, counted[0] - of_step


@pytest.mark.soak
@pytest.mark.parametrize("first", [True, False])
def test_a_step_sends_what_is_counted_for_it_and_nothing_without_messages(
    monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    monkeypatch.setenv(SWITCH, "0")  # as between hosts
    monkeypatch.setenv(SOCKETS_SWITCH, "0")  # by torch, whose messages are counted
    with RankPool(2) as pool:
        found = pool.call(sent_bytes, "1x2", first)
    cut = StackPartition(LITTLE.stack(4, 4), Grid(1, 2))
    plans = plans_of_step(cut, None if first else cut.input.boxes)
    values = sum(plan.points * channels for plan, channels in plans) * LITTLE.images
    assert sum(sent for sent, _ in found) == 4 * values
    assert all(bare == 0 for _, bare in found)


def test_messages_are_sent_as_before_once_an_action_has_failed() -> None:
    def failing() -> None:
        raise ZeroDivisionError

    before = dist.batch_isend_irecv
    with pytest.raises(ZeroDivisionError):
        without_messages(failing)()
    assert dist.batch_isend_irecv is before


def test_waits_count_the_last_action_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Message:
        def wait(self) -> None:
            pass

    ticks = count()
    monkeypatch.setattr(scaling_messages, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda messages: [Message() for _ in messages])
    waits, messages = Waits(), list[Any](range(3))
    action = waits.counted(lambda: [one.wait() for one in dist.batch_isend_irecv(messages)])
    for _ in range(2):
        action()
        assert waits.seconds == 3  # the clock ticks once in each wait


@pytest.mark.soak
def test_efficiency_on_the_same_map_is_half_the_time_of_one_process_over_that_of_two_ranks() -> None:
    for row in speed(Speed("strong", LITTLE, "1x2"), SMALLEST):
        beside_one, beside_two = row.verdicts
        assert (beside_one.against, beside_one.bar, beside_two.against) == (ONE, 0.9, TWO_APART)
        ratios = [a / 2 / b for a, b in zip(row.samples[ONE], row.samples[COTSWOLD], strict=True)]
        assert beside_one.ratio.median == pytest.approx(Spread.from_samples(ratios).median)


@pytest.mark.parametrize("fields", PAPER, ids=lambda fields: fields.name)
@pytest.mark.parametrize("grid", scaling.GRIDS)
def test_ranks_have_as_many_blocks_each_and_all_fit_the_memory(fields: Fields, grid: str) -> None:
    for kind in ("weak", "strong"):
        subject = Speed(kind, fields, grid)
        one, part, whole = (
            geometry.filters.grid[0] * geometry.filters.grid[1]
            for geometry in (subject.one, subject.part, subject.whole)
        )
        assert 2 * part == whole and one * 2 == whole * subject.work
        weights = sum(
            geometry.filters.parameters
            for geometry in (subject.one, subject.part, subject.part, subject.whole)
        )
        assert 2 * 4 * weights < MEMORY_MOST  # filters and momentum


def test_a_grid_of_one_rank_is_compared_with_the_plain_module() -> None:
    rows = alone(Alone(LITTLE, 1), SMALLEST)
    assert [row.key.operation for row in rows] == ["step", "forward", "local layer, forward"]
    verdicts = [verdict for row in rows for verdict in row.verdicts]
    assert {(one.against, one.bar, one.sense) for one in verdicts} == {("plain module", 1.02, "at most")}


def lethal(subject: str, effort: Any) -> list[Row]:
    raise AssertionError("this was to be left out")


def told(subject: str, effort: Any) -> list[Row]:
    spread = Spread.from_samples([0.5, 1.0, 1.5])
    where = RowKey(subject, "a shape", "an operation", 4)
    verdicts = [Comparison(ONE, spread, 0.9), Comparison("another", spread)]
    return [Row(where, "ms", {COTSWOLD: spread}, {COTSWOLD: [1.0]}, "seconds", verdicts)]


def test_what_needs_hosts_is_left_out_with_a_word_where_none_can_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "why_not", lambda: "this needs root")
    said: list[str] = []
    chosen = [Case("hosts", "over hosts", lethal, "hosts"), Case("weak", "here", told, "weak")]
    found = scaling.scaling(chosen, True, "a command", said.append, lambda _: None)
    assert found["left_out"] == {"hosts": "this needs root"}
    assert said[0] == "left out: hosts, because this needs root"
    rows = found["rows"]
    assert isinstance(rows, list) and [row["group"] for row in rows] == ["weak"]


def test_a_result_is_drawn_where_it_has_rows(tmp_path: Path) -> None:
    rows = [row.as_dict() for group in ("weak", "hidden") for row in told(group, None)]
    for name, draw in PLOTS.items():
        assert draw({"rows": rows}, tmp_path / name)
        assert "a shape, an operation" in (tmp_path / name).read_text()
        assert not draw({"rows": []}, tmp_path / f"no-{name}")


def test_every_group_has_something_quick_and_something_whole() -> None:
    for cases in (scaling.cases(), scaling.quick_cases()):
        assert {one.group for one in cases} == set(scaling.GROUPS)
    with pytest.raises(UserError, match="the groups are weak, strong"):
        select_cases(scaling.cases(), ["paper"], "", scaling.GROUPS)


def test_a_map_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="are not divisible by 1x2"):
        _ = Speed("strong", replace(LITTLE, strong=3), "1x2").part

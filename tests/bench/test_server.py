import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.bench.small_cases import SMALLEST

from cotswold.bench.case import groups_of
from cotswold.bench.kernels.ceilings import ADDED
from cotswold.bench.row import COTSWOLD
from cotswold.bench.server import factors, links, queue_drain, update_application
from cotswold.bench.server.cases import GROUPS, cases, quick_cases
from cotswold.bench.server.factors import Factors
from cotswold.bench.server.links import Links
from cotswold.bench.server.plots import draw
from cotswold.bench.server.unreplicated_servers import Model
from cotswold.bench.server.update_application import MEMORY, UpdateCase
from cotswold.cli.main import main
from cotswold.optim.server_rules import Adagrad, Momentum, Rule, Sgd
from cotswold.testing import why_not


@pytest.mark.parametrize(("rule", "one"), [(Sgd(), 3), (Momentum(0.9), 5), (Adagrad(), 5)])
def test_a_rule_has_its_transfers_and_one_more_for_each_further_push(rule: Rule, one: int) -> None:
    rows = update_application.measured(UpdateCase(rule, 256, 1024), SMALLEST)
    assert [row.facts["work"] for row in rows] == [4 * 1024 * (one + more) for more in (0, 3, 15)]
    assert [[verdict.bar for verdict in row.verdicts] for row in rows] == [[0.8, 0.8]] * 3
    assert {row.unit for row in rows} == {"GB/s"} and set(rows[0].figures) == {COTSWOLD, ADDED, MEMORY}


def test_the_memory_limit_is_the_rate_of_y_plus_x() -> None:
    row = update_application.measured(UpdateCase(Sgd(), 256, 1024), SMALLEST)[0]
    shares = [a / b for a, b in zip(row.samples[ADDED], row.samples[COTSWOLD], strict=True)]
    assert row.verdicts[0].ratio.least == pytest.approx(min(shares))


def test_memory_allows_no_more_than_y_plus_x_nor_than_reads() -> None:
    for row in update_application.measured(UpdateCase(Sgd(), 256, 1024), SMALLEST):
        assert all(a <= b for a, b in zip(row.samples[ADDED], row.samples[MEMORY], strict=True))


def test_factors_say_how_many_weights_they_write() -> None:
    rows = factors.measured(Factors(Sgd(), 5, 7, 350), SMALLEST)
    assert [row.facts["work"] for row in rows] == [2 * 350 * queue * k for queue, k in factors.QUEUES]
    assert [row.facts["bytes"] for row in rows] == [
        40 * (2 * 35 + queue * k * 12) for queue, k in factors.QUEUES
    ]
    assert all(row.facts["weights_per_second"] > 0 for row in rows)  # type: ignore[operator]  # a rate
    assert [verdict.bar for row in rows for verdict in row.verdicts] == [0.8] * len(rows)


def test_all_updates_of_a_queue_are_applied_and_only_longer_queues_are_fewer_passes() -> None:
    rows = queue_drain.measured(queue_drain.Draining(Adagrad(), 256, 4), SMALLEST)
    assert [row.facts["work"] for row in rows] == [4 * 1024 * (48 + 4 * passes) for passes in (16, 4, 1)]
    assert [row.verdicts[0].bar for row in rows] == [None] * 3


def test_the_table_of_trials_has_every_group() -> None:
    for some in (cases(), quick_cases()):
        assert {one.group for one in some} == set(GROUPS)


def test_groups_are_named_with_commas_or_one_by_one() -> None:
    assert groups_of(["apply,factors", "pull"], GROUPS) == {"apply", "factors", "pull"}


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    assert not draw({"rows": []}, tmp_path / "server.svg")


def test_the_command_leaves_a_table_a_file_and_a_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "server", "--quick", "--threads", "1", "--match", "adagrad", "--out", str(tmp_path)])
    assert left.value.code == 0
    assert "16 pushes, 20 transfers" in capsys.readouterr().out
    found = json.loads((tmp_path / "server.json").read_text())
    assert found["bench"] == "server" and found["complete"] and found["machine"]["processor"]
    assert "16 pushes" in (tmp_path / "server.svg").read_text()


def test_a_group_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "server", "--only", "nothing"])
    assert left.value.code == 2
    assert "apply, drain, factors" in capsys.readouterr().err


@pytest.mark.soak
def test_copies_and_deaths_are_measured_named_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--quick", "--threads", "1", "--copies", "1,2", "--only", "failover", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as left:
        main(["bench", "server", *words])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert "no copies: processor time" in said and "1 copy: pulls" in said and "a primary is killed" in said
    found = json.loads((tmp_path / "server-copies.json").read_text())
    assert {row["operation"] for row in found["rows"] if row["group"] == "copies"} == {"1 copy", "2 copies"}
    assert all(0 < each < 20 for row in found["rows"] for each in row.get("seconds", {}).get(COTSWOLD, ()))
    assert "s until pushes count again" in (tmp_path / "server-copies.svg").read_text()
    assert not (tmp_path / "server.json").exists()
    linked = {row["operation"]: row for row in found["rows"] if row["group"] == "links"}
    if why_not() is None:
        named = ("1 copy", "2 copies by star", "2 copies by chain")
        assert set(linked) == {f"{verb}, {each}" for verb in ("pushes", "pulls") for each in named}
        assert all(
            min(each for some in row["rates"].values() for each in some) > 0 for row in linked.values()
        )
        assert "rate relative to one copy" in (tmp_path / "server-links.svg").read_text()
    else:
        assert "root" in said and not (tmp_path / "server-links.svg").exists()


def test_slow_links_have_bars_for_three_copies_by_star_and_by_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"1 copy": 20.0, "star": 10.0, "chain": 17.0}

    class Crowd:
        def rate(self, group: Any, verb: str, _: float) -> float:
            return 20.0 if verb == "pulls" else rates["1 copy" if group.copies == 1 else group.topology]

    monkeypatch.setattr(links, "why_not", lambda: None)
    monkeypatch.setattr(links, "Hosts", lambda *_, **__: nullcontext(SimpleNamespace(control_congestion=id)))
    monkeypatch.setattr(links._ClientProcesses, "start", lambda *_: Crowd())
    rows = links.measured(Links(200, Model((("w", 4, 4),), 64), counts=(3, 2)), SMALLEST)
    found = {row.key.operation: row.verdicts[0] for row in rows}
    assert list(found)[:2] == ["pushes, 2 copies by star", "pushes, 2 copies by chain"]
    star, chain = found["pushes, 3 copies by star"], found["pushes, 3 copies by chain"]
    assert (star.bar, star.meets_bar) == (0.45, True) and (chain.bar, chain.meets_bar) == (0.9, False)
    assert chain.ratio.median == pytest.approx(0.85)
    assert {each.bar for name, each in found.items() if "3 copies" not in name} == {None}
    pulls = {(each.bar, each.meets_bar) for name, each in found.items() if "pulls, 3 copies" in name}
    assert pulls == {(0.95, True)}


def test_where_no_hosts_can_be_made_a_row_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "why_not", lambda: "this user is not root")
    (row,) = links.measured(Links(200, Model((("w", 4, 4),), 64)), SMALLEST)
    assert row.key.operation == "not measured" and row.note == "this user is not root" and not row.verdicts

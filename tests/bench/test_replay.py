"""Recording, reading and replay of a real run's traffic against real servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.bench.small_cases import SMALLEST
from tests.support.training.runs import finish
from tests.training.async_sgd.test_strategy import job_of

from cotswold.bench.row import COTSWOLD
from cotswold.bench.server import replay
from cotswold.bench.server.plots import draw_trace
from cotswold.bench.server.processes import REQUESTED_RATE
from cotswold.bench.server.recorded import read
from cotswold.bench.server.replay import Replay
from cotswold.cli.main import main
from cotswold.errors import UserError
from cotswold.optim.server_rules import Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.runtime.traffic_log import TrafficLog
from cotswold.wire import PullNewer, Shard, Update

SHARDS = (
    Shard(0, "server-0", 0, 6400, "weight", 0),
    Shard(1, "server-0", 6400, 12800, "weight", 1),
    Shard(2, "server-0", 12800, 12960, "bias", 0),
)
SETTINGS = AsyncSettings("run", "x", Sgd(), {"weight": 80, "bias": 1}, 4, QueueLimits(1, 1))


def recorded(folder: Path, servers: int = 1, pushes: int = 3) -> Path:
    """Record two replicas, each of which pushes gradients of 10 samples, and pulls."""
    for server in range(servers):
        own = [one for one in SHARDS if one.number % servers == server]
        numbers = tuple(one.number for one in own)
        traffic = TrafficLog(folder / "traffic" / f"server-{server}.jsonl", own, SETTINGS, "float32")
        for number in range(1, pushes + 1):
            for session, name in ((1, "replica-0"), (2, "replica-1")):
                versions = (0,) * len(own)
                for _ in range(2):  # the second time for want of an answer
                    samples = ((10 * number, 10 * number + 10),)
                    traffic.note(
                        name,
                        Update(
                            "run", session, number, "gradient", numbers, versions, 0, 1.0, samples, 0, (), ()
                        ),
                    )
                traffic.note(name, PullNewer("run", session, number + 1, numbers, versions))
        traffic.note("replica-0", Update("run", 1, pushes + 1, "gradient", (), (), 0, 1.0, (), 1, (), ()))
        traffic.close()
    return folder


def test_a_server_that_is_killed_leaves_what_came_to_it(tmp_path: Path) -> None:
    traffic = TrafficLog(tmp_path / "server-0.jsonl", SHARDS, SETTINGS, "float32")
    traffic.note("replica-0", Update("run", 1, 1, "gradient", (0,), (0,), 0, 1.0, ((0, 10),), 0, (), ()))
    assert read(tmp_path).pushes == 1  # nothing was closed
    traffic.close()


@pytest.mark.parametrize("servers", [1, 2])
def test_what_was_sent_to_several_servers_is_one_push(servers: int, tmp_path: Path) -> None:
    found = read(recorded(tmp_path, servers))
    assert found.pushes == 6 and found.servers == servers and len(found.sessions) == 2
    assert {tuple(sorted(each.shards)) for each in found.sessions[0] if each.is_push} == {(0, 1, 2)}
    assert {each.samples for each in found.sessions[1] if each.is_push} == {10}
    assert [one.number for one in found.shards] == [0, 1, 2] and found.columns == SETTINGS.columns


def test_what_was_not_recorded_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="record_traffic"):
        read(tmp_path)
    file = recorded(tmp_path, pushes=1) / "traffic" / "server-0.jsonl"
    whole = file.read_text().splitlines()
    for lines, why in (
        (["{}"], "this version"),
        ([whole[0], "[1]"], "line 2"),
        ([whole[0], "nonsense", whole[1]], "line 2 is not JSON"),
        (whole[:1], "contains no push"),
        (
            [json.dumps({**json.loads(whole[0]), "rule": {"name": "mine"}}), *whole[1:]],
            "does not hold the traffic of one run",
        ),
    ):
        file.write_text("\n".join(lines))
        with pytest.raises(UserError, match=why):
            read(tmp_path)
    file.write_text("\n".join(whole)[:-5])  # a server that was killed
    assert read(tmp_path).pushes == 2


def test_traffic_is_replayed_whole_and_as_factors(tmp_path: Path) -> None:
    found = read(recorded(tmp_path))
    rows = []
    for form, servers in (("whole", 2), ("factors", 1), ("factors", 4)):
        (row,) = replay.measured("mine", Replay(found, form, servers, seconds=0.3), SMALLEST)  # type: ignore[arg-type]  # forms
        assert row.figures[COTSWOLD].median > 0
        rows.append({"threads": 1, **row.as_dict()})
    whole, factors, simulated = (row["facts"] for row in rows)
    assert whole["sent_bytes_a_push"] > 4 * 12960  # type: ignore[index]  # facts
    assert 4 * 10 * (160 + 80) < factors["sent_bytes_a_push"] < 4 * 12960  # type: ignore[index]  # facts
    assert simulated["is_simulated"] and not factors["is_simulated"]  # type: ignore[index]  # facts
    assert draw_trace({"rows": rows}, tmp_path / "trace.svg")
    assert "simulated" in (tmp_path / "trace.svg").read_text()


def test_a_run_that_learns_can_be_replayed_at_its_own_speed(tmp_path: Path) -> None:
    run = finish(
        job_of(tmp_path, "workers = 2, servers = 2", epochs=2, shard_kilobytes=1, record_traffic=True)
    )
    found = read(run.path)
    assert found.servers == 2
    assert sum(each.samples for session in found.sessions for each in session if each.is_push) == 2 * 240
    text = (run.path / "traffic" / "server-0.jsonl").read_text()
    assert len(text) < 200 * (found.pushes + 200)
    (row,) = replay.measured("mine", Replay(found, "as recorded", 1, found.seconds, 3.0), SMALLEST)
    assert 0 < row.figures[COTSWOLD].median <= 1.01 * row.figures[REQUESTED_RATE].median


def test_a_folder_without_traffic_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "server", "--trace", str(tmp_path)])
    assert left.value.code == 2 and "record_traffic" in capsys.readouterr().err

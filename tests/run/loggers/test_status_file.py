"""Current state of a run in a file: written once per second, read atomically, deleted at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotswold.errors import MachineError
from cotswold.run import EventLog
from cotswold.run.loggers.status_file import StatusFile, read_status


def test_the_newest_of_each_kind_and_the_last_news_are_kept(tmp_path: Path) -> None:
    now = [100.0]
    path = tmp_path / "status.json"
    file = StatusFile(path, lambda: now[0])
    for number in range(30):
        file.write({"kind": "step", "step": number})
        file.write({"kind": "cluster_ended", "name": f"replica-{number}"})
        file.write({"kind": "whiteness"})
        now[0] += 1
    found = read_status(path)
    assert found is not None
    newest, news = found["newest"], found["news"]
    assert newest == {"step": {"kind": "step", "step": 29}}
    assert isinstance(news, list) and [each["name"] for each in news][-1] == "replica-28", (
        "a second has not passed"
    )
    assert len(news) == 10


def test_it_is_written_once_a_second_and_goes_when_the_log_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    now = [100.0]
    with EventLog(tmp_path / "events.jsonl", observers=[StatusFile(path, lambda: now[0])]) as log:
        log.show("replicas", each=[1])
        first = path.stat().st_ino
        log.show("replicas", each=[2])
        assert path.stat().st_ino == first
        now[0] += 1.0
        log.show("replicas", each=[3])
        found = read_status(path)
        assert found is not None and found["newest"]["replicas"]["each"] == [3]  # type: ignore[index]  # JSON
    assert not path.exists() and read_status(path) is None
    assert (tmp_path / "events.jsonl").read_text() == "", "it is of interest for a moment"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"written": 1, "newest": []}', '{"written": "x"'])
def test_a_file_that_is_no_status_is_said_to_be_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(content)
    with pytest.raises(MachineError, match="remove it, a running run writes it again"):
        read_status(tmp_path / "status.json")

"""Current state of a run in a file: written once per second, read atomically, deleted at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotswold.errors import MachineError
from cotswold.run import EventLog
from cotswold.run.loggers.status_file import StatusFile, read_status


def test_the_latest_of_each_kind_and_the_last_process_events_are_kept(tmp_path: Path) -> None:
    now = [100.0]
    path = tmp_path / "status.json"
    file = StatusFile(path, lambda: now[0])
    for number in range(30):
        file.write({"kind": "step", "step": number})
        file.write({"kind": "cluster_exited", "name": f"replica-{number}"})
        file.write({"kind": "whiteness"})
        now[0] += 1
    found = read_status(path)
    assert found is not None
    latest, process_events = found["latest"], found["process_events"]
    assert latest == {"step": {"kind": "step", "step": 29}}
    assert isinstance(process_events, list) and len(process_events) == 10
    assert process_events[-1]["name"] == "replica-28", "a second has not passed"


def test_it_is_written_once_a_second_and_goes_when_the_log_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    now = [100.0]
    with EventLog(tmp_path / "events.jsonl", observers=[StatusFile(path, lambda: now[0])]) as log:
        log.show("replicas", replicas=[1])
        first = path.stat().st_ino
        log.show("replicas", replicas=[2])
        assert path.stat().st_ino == first
        now[0] += 1.0
        log.show("replicas", replicas=[3])
        found = read_status(path)
        assert found is not None and found["latest"]["replicas"]["replicas"] == [3]  # type: ignore[index]  # JSON
    assert not path.exists() and read_status(path) is None
    assert (tmp_path / "events.jsonl").read_text() == "", "it is of interest for a moment"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"time": 1, "latest": []}', '{"time": "x"'])
def test_a_file_that_is_no_status_is_said_to_be_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(content)
    with pytest.raises(MachineError, match="remove it, a running run writes it again"):
        read_status(tmp_path / "status.json")

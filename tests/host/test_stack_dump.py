"""Stack dumps of processes, including stopped ones, and ones that a signal would kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotswold.host import stack_dump as stacks
from cotswold.host.process_info import parent_of, process_state, process_tree

PROGRAM = """
import os, pathlib, subprocess, sys, time
from cotswold.host import stack_dump
logs = pathlib.Path(sys.argv[1])

def waiting_for_godot():
    print("ready", flush=True)
    time.sleep(60)

def child(name, listens):
    script = "from cotswold.host import stack_dump; import time; "
    script += "stack_dump.dump_on_signal(2); " if listens else ""
    script += "print('ready', flush=True); time.sleep(60)"
    with open(logs / f"{name}.log", "a") as log:
        made = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=log)
    made.stdout.readline()
    return made

with stack_dump.stack_dumps_to(logs / "main.log"):
    children = [child("good", True), child("deaf", False), child("still", True)]
    print(*[each.pid for each in children], flush=True)
    waiting_for_godot()
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[int]]:
    """Start a process that waits, with three children: one answers, one ignores signals, one is stopped."""
    logs = tmp_path / "logs"
    logs.mkdir()
    main = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(logs)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert main.stdout is not None
    try:
        found = [main.pid, *map(int, main.stdout.readline().split())]
        assert main.stdout.readline() == "ready\n"
        yield found
    finally:
        os.killpg(main.pid, signal.SIGKILL)
        main.wait()
        main.stdout.close()


@pytest.mark.skipif(not stacks.is_supported(), reason="stacks need /proc")
def test_every_process_that_listens_answers_and_no_other_is_harmed(
    processes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_WAIT_SECONDS", 1.0)
    main, good, deaf, still = processes
    assert process_tree(main) == [main, good, deaf, still]
    os.kill(still, signal.SIGSTOP)
    while not stacks.describe_state(still):
        time.sleep(0.01)
    logs = tmp_path / "logs"
    found = {each.name: each for each in stacks.request_dumps(main, logs)}
    assert found.keys() == {"main", "good", "still"}
    assert "waiting_for_godot" in found["main"].text and found["main"].processes == (main,)
    assert "most recent call first" in found["good"].text
    assert found["still"].text == "" and found["still"].states == (f"process {still} is stopped",)
    assert process_state(deaf) in ("S", "R"), "it lives"
    again = {each.name: each for each in stacks.request_dumps(main, logs)}
    assert again["main"].text.count("waiting_for_godot") == 1, "what was written before is not shown again"


@pytest.mark.skipif(not stacks.is_supported(), reason="stacks need /proc")
def test_the_siblings_of_a_process_answer_too(processes: list[int], tmp_path: Path) -> None:
    main, good, _, still = processes
    assert parent_of(still) == main
    found = {each.name: each for each in stacks.request_dumps(still, tmp_path / "logs")}
    assert found.keys() == {"main", "good", "still"}
    assert found["good"].processes == (good,) and "most recent call first" in found["good"].text


def test_a_process_that_was_never_asked_leaves_no_file(tmp_path: Path) -> None:
    with stacks.stack_dumps_to(tmp_path / "logs" / "main.log"):
        assert (tmp_path / "logs" / "main.log").exists()
        assert stacks._handles_signal(os.getpid())
    assert list(tmp_path.iterdir()) == []
    assert not stacks._handles_signal(os.getpid())


def test_a_process_that_handles_the_signal_itself_keeps_its_handler(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(stacks.SIGNAL, lambda number, _: heard.append(number))
    try:
        with stacks.stack_dumps_to(tmp_path / "logs" / "main.log"):
            os.kill(os.getpid(), stacks.SIGNAL)
        assert heard == [stacks.SIGNAL] and not (tmp_path / "logs").exists()
    finally:
        signal.signal(stacks.SIGNAL, before)

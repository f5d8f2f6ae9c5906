"""Contract tests for everything that starts processes: derive from `ProcessesContract` and define `make`.

Knows: the methods of `host.Processes`, pytest. Does not know: the implementations.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cotswold.errors import CotswoldError, UserError
from cotswold.host.descriptors import is_readable
from cotswold.host.processes import Call, Process, Processes
from cotswold.testing import process_functions
from cotswold.testing.signals import is_running, stopped, wait_until

_ENDS_SECONDS = 60


class ProcessesContract:
    """Contract tests of a `host.Processes` that starts processes on this host; derive a test class from it.

    The derived class overrides `make`. The tests of a class may share ``processes``.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def processes(cls) -> Iterator[Processes]:
        made = cls.make()
        yield made
        made.close()

    @classmethod
    def make(cls) -> Processes:
        """Create the implementation to test."""
        raise AssertionError(f"{cls.__name__} must override make")

    @pytest.fixture
    def started(self, processes: Processes) -> Iterator[list[Process]]:
        """Processes that a test starts; they are ended after the test."""
        found: list[Process] = []
        yield found
        for process in found:
            process.end()

    def test_a_process_is_given_its_words_and_variables_and_runs_alone(
        self, processes: Processes, started: list[Process], tmp_path: Path
    ) -> None:
        path, words = tmp_path / "said", ["a b", "ü", '"']
        call = Call(
            "teller",
            play(process_functions.tell.__name__),
            {"path": str(path), "words": words, "variables": ["COTSWOLD_PLAY", "HOME"]},
            {"COTSWOLD_PLAY": "1 2"},
            tmp_path / "output",
        )
        process = processes.start(call)
        started.append(process)
        assert (ended(process), process.why()) == (0, "ended with exit code 0")
        said = json.loads(path.read_text())
        assert said["words"] == words and said["read"] == "" and said["in_main_thread"]
        assert said["interrupts"] and said["waits"]  # signals have the default handlers of a new process
        assert said["pid"] == process.pid == said["group"] != os.getpid()
        assert said["variables"] == {"COTSWOLD_PLAY": "1 2", "HOME": os.environ.get("HOME")}
        assert (tmp_path / "output").read_text().split("\n") == ["printed", "printed as an error", ""]
        assert process.name == "teller" and process.machine in processes.machines()

    @pytest.mark.parametrize(
        ("name", "argument", "code", "why"),
        [
            ("end_with", None, 0, "ended with exit code 0"),
            ("end_with", 3, 3, "ended with exit code 3"),
            ("leave_with", 4, 4, "ended with exit code 4"),
            ("leave_with", "enough", 1, "ended with exit code 1: enough"),
            ("fail", "of 0", 1, "ended with exit code 1: ZeroDivisionError: of 0"),
            ("refuse", "no such thing", 2, "ended with exit code 2: no such thing"),
            (
                "is_not_there",
                1,
                2,
                "ended with exit code 2: a process cannot find cotswold.testing.process_functions:is",
            ),
        ],
    )
    def test_it_is_told_how_a_process_ended_and_why(
        self,
        processes: Processes,
        started: list[Process],
        tmp_path: Path,
        name: str,
        argument: object,
        code: int,
        why: str,
    ) -> None:
        words = {"end_with": "code", "leave_with": "code"}.get(name, "text")
        process = processes.start(Call(name, play(name), {words: argument}, output=tmp_path / "output"))
        started.append(process)
        assert ended(process) == code
        assert process.why().startswith(why)
        process.end()
        assert process.code() == code and process.why().startswith(why)

    def test_a_signal_reaches_a_process_which_may_obey_it(
        self, processes: Processes, started: list[Process], tmp_path: Path
    ) -> None:
        process = processes.start(
            Call("obedient", play("obey"), {"path": str(tmp_path / "pid")}, output=tmp_path / "output")
        )
        started.append(process)
        wait_until((tmp_path / "pid").exists)
        assert process.code() is None and process.why() == "is running"
        process.send(signal.SIGTERM)
        assert ended(process) == 7
        process.send(signal.SIGTERM)  # the process has ended

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
    def test_a_death_by_a_signal_is_heard_at_once_and_has_its_name(
        self, processes: Processes, started: list[Process], tmp_path: Path, number: signal.Signals
    ) -> None:
        process = processes.start(Call("waiter", play("wait"), output=tmp_path / "output"))
        started.append(process)
        assert not is_readable(process, 0)
        os.kill(process.pid, number)
        assert is_readable(process, _ENDS_SECONDS)
        assert (process.code(), process.why()) == (-number, f"was killed by {number.name}")
        assert is_readable(process, 0)  # and stays readable

    def test_a_process_that_stands_still_can_be_ended(
        self, processes: Processes, started: list[Process]
    ) -> None:
        process = processes.start(Call("waiter", play("wait")))
        started.append(process)
        with stopped(process.pid):
            assert process.code() is None
            process.end()
            assert process.code() == -signal.SIGKILL and not is_running(process.pid)

    def test_a_process_is_ended_with_what_it_has_started(
        self, processes: Processes, started: list[Process], tmp_path: Path
    ) -> None:
        process = processes.start(Call("parent", play("start_another"), {"path": str(tmp_path / "pid")}))
        started.append(process)
        wait_until((tmp_path / "pid").exists)
        other = int((tmp_path / "pid").read_text())
        assert is_running(other)
        process.end()
        process.end()
        wait_until(lambda: not is_running(other), "what it had started has ended")

    def test_the_death_of_one_harms_no_other_and_another_takes_its_place(
        self, processes: Processes, started: list[Process]
    ) -> None:
        started += [processes.start(Call(f"waiter {number}", play("wait"))) for number in range(3)]
        started[1].send(signal.SIGKILL)
        assert ended(started[1]) == -signal.SIGKILL
        started.append(processes.start(Call("waiter 1", play("wait"))))
        assert [process.code() for process in started] == [None, -signal.SIGKILL, None, None]
        assert len({process.pid for process in started}) == 4

    def test_output_is_appended(self, processes: Processes, started: list[Process], tmp_path: Path) -> None:
        output = tmp_path / "output"
        output.write_text("before\n")
        process = processes.start(Call("failing", play("fail"), {"text": "twice"}, output=output))
        started.append(process)
        ended(process)
        before, *_, last = output.read_text().splitlines()
        assert (before, last) == ("before", "ZeroDivisionError: twice")

    def test_an_output_that_cannot_be_opened_is_named(self, processes: Processes, tmp_path: Path) -> None:
        with pytest.raises(CotswoldError, match="nowhere"):
            processes.start(Call("lost", play("wait"), output=tmp_path / "nowhere" / "output"))

    def test_a_machine_that_is_not_there_is_named(self, processes: Processes) -> None:
        with pytest.raises(UserError, match="nosuchmachine"):
            processes.start(Call("lost", play("wait")), machine="nosuchmachine")

    def test_a_machine_that_is_there_can_be_asked_for(
        self, processes: Processes, started: list[Process]
    ) -> None:
        for machine, cores in processes.machines().items():
            started.append(processes.start(Call("waiter", play("wait")), machine=machine))
            assert started[-1].machine == machine and cores >= 1

    @pytest.mark.parametrize("function", ["", "time", ":sleep", "time:", "time:sleep(1)"])
    def test_a_function_without_module_or_name_is_refused(self, function: str) -> None:
        with pytest.raises(UserError, match="module:function"):
            Call("nothing", function)

    def test_arguments_that_json_cannot_say_are_refused(self, processes: Processes) -> None:
        with pytest.raises(UserError, match=r"arguments of lost.*not JSON serializable"):
            processes.start(Call("lost", play("end_with"), {"code": object()}))

    def test_arguments_may_be_large(
        self, processes: Processes, started: list[Process], tmp_path: Path
    ) -> None:
        words, path = ["word" * 1000] * 500, tmp_path / "said"
        call = Call("teller", play("tell"), {"path": str(path), "words": words, "variables": []})
        started.append(processes.start(replace(call, output=tmp_path / "output")))
        assert ended(started[0]) == 0 and json.loads(path.read_text())["words"] == words

    def test_all_processes_end_when_it_is_closed(self, tmp_path: Path) -> None:
        processes = self.make()
        path = tmp_path / "pid"
        waiting = processes.start(Call("waiter", play("wait")))
        parent = processes.start(Call("parent", play("start_another"), {"path": str(path)}))
        wait_until(path.exists)
        other = int(path.read_text())
        processes.close()
        wait_until(
            lambda: not any(is_running(pid) for pid in (waiting.pid, parent.pid, other)), "all have ended"
        )
        assert waiting.code() == -signal.SIGKILL
        processes.close()


def play(name: str) -> str:
    """Return the name by which a process finds a function of `process_functions`."""
    return f"{process_functions.__name__}:{name}"


def ended(process: Process) -> int:
    """Wait until a process has ended, and return its exit code."""
    assert is_readable(process, _ENDS_SECONDS), f"{process.name} does not end"
    code = process.code()
    assert code is not None
    return code

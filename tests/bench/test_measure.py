import subprocess
from pathlib import Path

import pytest

from cotswold.bench.measure import (
    SHORTEST_SECONDS,
    Rounds,
    Spread,
    document,
    interleaved,
    rates,
    ratios,
    rounded,
    source_commit,
)
from cotswold.kernels.machine.processor import this_processor


class _Clock:
    """A clock that only actions advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def act(self, name: str, seconds: float) -> None:
        self.calls.append(name)
        self.now += seconds


def test_samples_are_the_seconds_of_one_call() -> None:
    clock = _Clock()
    found = interleaved({"a": lambda: clock.act("a", 0.5), "b": lambda: clock.act("b", 2.0)}, 3, clock)
    assert found == {"a": [0.5] * 3, "b": [2.0] * 3}


def test_each_round_runs_everything_and_begins_with_another_action() -> None:
    clock = _Clock()
    interleaved({name: lambda name=name: clock.act(name, 1.0) for name in "abc"}, 3, clock)  # type: ignore[misc]  # lambda
    assert "".join(clock.calls[-9:]) == "abcbcacab"


def test_what_is_short_is_repeated_within_a_sample() -> None:
    clock = _Clock()
    found = interleaved({"short": lambda: clock.act("short", SHORTEST_SECONDS / 10)}, 2, clock)
    assert len(clock.calls) == 2 + 2 * (1 + 10)  # before each sample one that is not timed
    assert found["short"] == pytest.approx([SHORTEST_SECONDS / 10] * 2)


@pytest.mark.parametrize(("seconds", "rounds"), [(10.0, 5), (2.5, 3), (0.0, 2)])
def test_rounds_end_with_limits_but_not_before_the_least(seconds: float, rounds: int) -> None:
    clock = _Clock()
    limits = Rounds(max_rounds=5, min_rounds=2, seconds=seconds)
    assert len(interleaved({"a": lambda: clock.act("a", 1.0)}, limits, clock)["a"]) == rounds


def test_what_is_too_slow_for_the_rounds_has_one_sample() -> None:
    clock = _Clock()
    actions = {"a": lambda: clock.act("a", 1.0), "slow": lambda: clock.act("slow", 9.0)}
    found = interleaved(actions, Rounds(max_rounds=3, slow_seconds=2.0), clock)
    assert found == {"a": [1.0] * 3, "slow": [9.0]}
    assert clock.calls.count("slow") == 2  # one that warms, one that counts


def test_a_spread_holds_least_quartiles_and_greatest() -> None:
    assert Spread.from_samples([5, 1, 4, 2, 3]) == Spread(1, 2, 3, 4, 5)


def test_one_sample_is_its_own_spread() -> None:
    assert Spread.from_samples([7.0]) == Spread(7, 7, 7, 7, 7)


def test_ratios_are_taken_round_by_round() -> None:
    # both slow down by ten in the second round: the ratio does not
    assert ratios([1, 10, 2], [2, 20, 4]) == Spread.from_samples([0.5, 0.5, 0.5])


def test_one_sample_stands_for_every_round() -> None:
    assert ratios([6], [2, 3]) == Spread.from_samples([3, 2])
    assert ratios([2, 3], [6]) == Spread.from_samples([1 / 3, 1 / 2])


def test_a_rate_is_work_over_seconds() -> None:
    assert rates(6, [1, 2, 3]) == Spread.from_samples([6, 3, 2])


def test_figures_are_rounded_to_five_digits() -> None:
    assert rounded(123456.789) == 123460.0


def test_a_result_names_the_commit_of_its_source_and_whether_the_source_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        told = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip()

    source = tmp_path / "src"
    source.mkdir()
    (source / "one.py").write_text("1")
    assert source_commit(source) == {"commit": None, "changed": None}
    git("init", "-q")
    assert source_commit(source) == {"commit": None, "changed": None}, "an untracked folder, as of an install"
    git("add", "-A")
    git("commit", "-qm", "first")
    assert source_commit(source) == {"commit": git("rev-parse", "HEAD"), "changed": False}
    (source / "one.py").write_text("2")
    assert source_commit(source) == {"commit": git("rev-parse", "HEAD"), "changed": True}


def test_a_result_names_the_processor_for_which_kernels_are_generated() -> None:
    machine = document("name", "command")["machine"]
    assert isinstance(machine, dict)
    here = this_processor()
    assert here is not None
    _, isa, *further = machine["target"].split()
    assert isa == here.isa and further == ["amx"] * here.has_amx

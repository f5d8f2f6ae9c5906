"""benchmarks/papers.py: commands run within the hours, and results shown next to the papers' statements."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from runpy import run_path

import pytest
from cyclopts import App

from cotswold.cli.main import build
from cotswold.errors import UserError
from lib.command import main
from lib.papers.chilimbi_feeding import feeding
from lib.papers.page import Given, entries, page, told
from lib.papers.part import Claim, Found, Paper, Part
from lib.papers.runner import BENCHMARKS, PaperRunner, read, run_here
from lib.papers.sources import SIZES, SOURCES, Command, Source, size_of
from papers import PAPERS, papers

RESULTS = BENCHMARKS / "results"
UNFINISHED = {("chilimbi2014", "Section 4.3.3")}
"""Parts with a kept result that has no finished cell of theirs yet."""


def status(*words: str) -> object:
    with pytest.raises(SystemExit) as left:
        main(papers, words)
    return left.value.code


class TakenError(Exception):
    """A script accepted its arguments and would start."""


def parsed(app: App, words: Sequence[str]) -> None:
    """Raise an error if the command rejects these arguments."""
    app.parse_args(words, exit_on_error=False, print_error=False)


def taken(words: Sequence[str], patch: pytest.MonkeyPatch) -> None:
    """Raise an error if a script rejects these arguments; nothing is measured."""
    module = import_module(Path(words[0]).stem)
    if hasattr(module, module.__name__):
        parsed(App(default_command=getattr(module, module.__name__)), words[1:])
        return
    understand = ArgumentParser.parse_args

    def ends(parser: ArgumentParser, *given: object) -> None:
        understand(parser)
        raise TakenError

    with patch.context() as own:
        own.setattr(ArgumentParser, "parse_args", ends)
        own.setattr(sys, "argv", list(words))
        with pytest.raises(TakenError):
            run_path(words[0], run_name="__main__")


class Machine:
    """Runs a command line by writing its result, in minutes of a fake clock."""

    def __init__(self, out: Path, minutes: float) -> None:
        self.out, self.minutes, self.now = out, minutes, 0.0
        self.ran: list[Sequence[str]] = []

    def __call__(self, words: Sequence[str]) -> int:
        self.ran.append(words)
        self.now += 60 * self.minutes
        (self.out / f"{Path(words[1]).stem}.json").write_text("{}")
        return 0


def source(name: str, minutes: float, goes_on: bool = False) -> Source:
    words = (Command([f"{name}.py", "--minutes", "{minutes}"]),)
    return Source(dict.fromkeys(SIZES, words), dict.fromkeys(SIZES, minutes), goes_on)


def running(folder: Path, machine: Machine, hours: float, **sources: Source) -> PaperRunner:
    return PaperRunner(
        folder, folder / "work", "glance", hours, sources, run=machine, clock=lambda: machine.now
    )


def test_what_takes_least_is_run_first_and_what_does_not_fit_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 10)
    sources = {"long": source("long", 50), "short": source("short", 10), "more": source("more", 12)}
    here = running(tmp_path, machine, 0.5, **sources)
    written: list[int] = []
    here.all([*sources], lambda: written.append(len(machine.ran)))
    assert [Path(words[1]).stem for words in machine.ran] == ["short", "more"] and written == [1, 2]
    assert [*here.problems] == ["long"] and "about 50 minutes" in here.problems["long"]


def test_what_is_finished_is_not_run_again_but_what_goes_on_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    sources = {"once": source("once", 1), "cells": source("cells", 2, goes_on=True)}
    for _ in range(2):
        running(tmp_path, machine, 1.0, **sources).all([*sources], lambda: None)
    assert [Path(words[1]).stem for words in machine.ran] == ["once", "cells", "cells"]
    assert float(machine.ran[1][-1]) == pytest.approx(59.0, abs=0.1)


def test_a_command_that_fails_is_named_and_the_others_run(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)

    def run(words: Sequence[str]) -> int:
        return 1 if words[1].endswith("bad.py") else machine(words)

    sources = {"bad": source("bad", 1), "good": source("good", 1)}
    here = running(tmp_path, machine, 1.0, **sources)
    here.run = run
    here.all([*sources], lambda: None)
    assert here.problems == {"bad": "bad: bad.py exited with status 1"}
    assert here.kept("good") and not here.kept("bad")


def test_what_a_command_prints_is_no_part_of_the_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_here([sys.executable, "-c", "print('a table'); raise SystemExit(3)"]) == 3
    said = capfd.readouterr()
    assert said.out == "" and "a table" in said.err


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_every_part_says_what_was_stated_and_how_it_was_redone(name: str) -> None:
    paper = PAPERS[name]
    for part in paper.parts:
        assert part.stated and part.about and part.title
        assert (part.found is None) == (part.kind == "left out")
        assert all(need in SOURCES for need in part.needs)
    assert len({(part.name, part.title) for part in paper.parts}) == len(paper.parts)


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_results_that_are_kept_become_a_page(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(name, "--hours", "0", "--out", str(tmp_path), "--json") == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    there = {path.stem for path in RESULTS.glob("*.json")}
    for part in parts:
        if part["is"] != "left out":
            is_there = {*part["results"]} <= there and (name, part["part"]) not in UNFINISHED
            assert (part["is"] != "not run yet") == is_there
            assert bool(part["claims"]) == is_there
    text = (tmp_path / name / "glance" / f"{name}.html").read_text()
    assert text.count("<svg") >= 2 and "prefers-color-scheme: dark" in text
    assert all(part["stated"].split("'")[0][:40] in text for part in parts)


def test_without_results_the_page_names_the_commands(tmp_path: Path) -> None:
    assert status("chilimbi2014", "--hours", "0", "--no-earlier", "--out", str(tmp_path)) == 0
    text = (tmp_path / "chilimbi2014" / "glance" / "chilimbi2014.html").read_text()
    assert "python benchmarks/papers.py chilimbi2014 --hours 1 --only adam-mnist" in text
    assert "<svg" not in text


def test_without_hours_the_largest_size_is_shown_that_has_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("chilimbi2014", "--hours", "0", "--no-earlier", "--out", str(tmp_path), "--json")
    for size, name, shown in (
        ("glance", "hogwild", ["Section 3.2.3"]),
        ("whole", "staleness", ["Section 4.3"]),
        ("evening", "hogwild", ["Section 4.3"]),
    ):
        folder = tmp_path / "chilimbi2014" / size
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_bytes((RESULTS / f"{name}.json").read_bytes())
        assert status(*words) == 0
        parts = json.loads(capsys.readouterr().out)["parts"]
        assert [part["part"] for part in parts if part["is"] == "measured"] == shown
    assert (tmp_path / "chilimbi2014" / "whole" / "chilimbi2014.html").is_file()
    assert not (tmp_path / "chilimbi2014" / "evening" / "chilimbi2014.html").exists()


def test_a_result_that_says_nothing_yet_is_not_run_yet() -> None:
    part = Part("Figure 1", "rate", "measured", "by hand", "as fast", ("some",), lambda found: Found())
    given = {"some": Given({"command": "python some.py"}, earlier=False)}
    assert told(Paper("some", "Some", "Some paper", (part,)), given)[0]["is"] == "not run yet"


def test_a_part_has_what_its_results_say_and_no_part_without_them() -> None:
    part = Part(
        "Figure 1", "<rate>", "measured", "by hand", "as fast", ("some",),
        lambda found: Found([Claim("2", f"{found['rate']}")]),
    )  # fmt: skip
    paper = Paper("some", "Some", "Some paper", (part,))
    assert entries(paper, {})[0][1] is None and told(paper, {})[0]["is"] == "not run yet"
    given = {"some": Given({"rate": 3, "command": "python some.py"}, earlier=True)}
    assert told(paper, given)[0]["claims"] == [{"said": "2", "ours": "3"}]
    text = page(paper, given, ["some was not run"], "python papers.py", {"some": "python some.py"})
    assert "&lt;rate&gt;" in text and "an earlier measurement" in text and "Some was not run" in text


def test_hours_choose_the_size() -> None:
    assert [size_of(hours) for hours in (0, 1.9, 2, 11, 12, 100)] == [
        "glance", "glance", "evening", "evening", "whole", "whole",
    ]  # fmt: skip


def test_mistakes_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", str(tmp_path))
    assert status("chilimbi2014", "--hours", "-1", *out) == 2
    assert status("chilimbi2014", "--only", "other", *out) == 2
    said = capsys.readouterr().err
    assert "--hours -1 must be at least 0" in said and "; use adam-" in said and said.count("\n") == 2
    (tmp_path / "some.json").write_text("{")
    with pytest.raises(UserError, match="is not valid JSON"):
        read("some", [tmp_path])


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_every_command_has_its_words_at_every_size(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in SIZES:
        here = PaperRunner(tmp_path, tmp_path, size, 1.0)
        for each in SOURCES[name].commands[size]:
            words = here.words(each, 1.0)
            if words[1:3] == ["-m", "cotswold"]:
                parsed(build(), words[3:])
            else:
                taken(words[1:], monkeypatch)


def test_data_servers_are_compared_with_other_feeders_with_their_cache_and_kills() -> None:
    result = json.loads((RESULTS / "data-servers.json").read_text())
    found, rows = feeding(result), result["summary"]["rows"]
    (table,) = found.tables
    assert len(table.rows) == len(rows) and len(found.claims) == 4
    assert f"{rows[0]['subject']} {rows[0]['samples_a_core_second']['median']:,.0f}" in found.claims[0].ours
    assert "0 were duplicated and 0 lost" in found.claims[3].ours
    nothing: dict[str, dict[str, list[object]]] = {
        "summary": {"rows": [], "cache": [], "killed": [], "bars": []}
    }
    assert not feeding(nothing).claims and not feeding(nothing).tables

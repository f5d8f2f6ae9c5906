"""Options of every command: -v, -q, --debug, -V; the command `help`; usage lines; completion scripts."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

import pytest
from cyclopts import App
from tests.support.cli.command import cotswold

from cotswold.cli.main import COMMANDS, GROUPS, build
from cotswold.ui import terminal


def leaves(app: App, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that can be called."""
    flags = {*app.help_flags, *app.version_flags}
    if app.default_command is not None:
        yield names
    for name in app:
        if name not in flags:
            yield from leaves(app[name], (*names, name))


ALL = sorted(leaves(build()))


def test_every_command_is_in_one_group_of_the_list() -> None:
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(COMMANDS)
    lines = cotswold("--help").out.splitlines()
    places = [next(at for at, line in enumerate(lines) if f"─ {heading} ─" in line) for heading in GROUPS]
    assert places == sorted(places)
    assert lines[2].startswith("Train PyTorch models across a handful of ordinary, unequal")


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_shows_the_options_of_every_command_and_every_positional_argument(words: Sequence[str]) -> None:
    said = cotswold(*words, "--help")
    assert said.status == 0 and cotswold("help", *words).out == said.out
    for option in ("--verbose -v", "--quiet -q", "--debug"):
        assert option in said.out
    usage = said.out.splitlines()[0]
    assert usage.startswith(f"Usage: cotswold {' '.join(words)}") and "ARGS" not in usage


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("train", "cotswold train [OPTIONS] [RECIPE]"),
        ("serve", "cotswold serve [COMMAND] --module MODULE [OPTIONS]"),
        ("serve data", "cotswold serve data [OPTIONS] SOURCE"),
        ("simulate", "cotswold simulate [OPTIONS] [CLUSTER] [RECIPE]"),
        ("cluster", "cotswold cluster COMMAND [OPTIONS]"),
        ("cluster add", "cotswold cluster add --controllers CONTROLLERS [OPTIONS]"),
        ("cluster recover", "cotswold cluster recover [OPTIONS] [OTHERS...]"),
        ("data augment", "cotswold data augment --out OUT [OPTIONS] RECIPE"),
    ],
)
def test_usage_names_arguments_and_required_options(words: str, usage: str) -> None:
    assert cotswold(*words.split(), "--help").out.splitlines()[0] == f"Usage: {usage}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("help trian", "there is no command 'trian'; cotswold help lists all"),
        ("help cluster strat", "there is no command 'cluster strat'; cotswold help cluster lists all"),
        ("trian --help", 'Unknown command "trian". Did you mean "train"?'),
        ("info demo -v -q", "--quiet and --verbose exclude each other"),
    ],
)
def test_a_wrong_word_is_refused_instead_of_a_help_of_something_else(words: str, sentence: str) -> None:
    said = cotswold(*words.split())
    assert said.status == 2 and sentence in said.error and said.out == ""


def test_help_alone_is_the_list_of_commands() -> None:
    assert cotswold("help").out == cotswold("--help").out == cotswold().out


def test_the_version_has_a_short_option() -> None:
    assert cotswold("-V").out == cotswold("--version").out
    assert cotswold("-q", "-V").out == cotswold("-V").out


@pytest.mark.parametrize("words", [("recipe", "list", "-v"), ("-v", "recipe", "list")], ids=" ".join)
def test_verbose_shows_versions_time_and_memory_of_every_command(words: Sequence[str]) -> None:
    usual, said = cotswold("recipe", "list"), cotswold(*words)
    assert (said.status, said.out, usual.err) == (0, usual.out, "")
    first, last = said.err.splitlines()
    assert re.match(r"cotswold: version \S+, Python 3\.\S+, torch \S+, numpy", first)
    assert re.match(r"cotswold: recipe list: .* s, .* of processor time, at most [\d.]+ [MG]B", last)
    assert terminal.VERBOSITY not in os.environ


def test_verbose_shows_log_records_and_removes_its_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("cotswold")
    before = log.handlers[:], log.level

    def names() -> list[str]:
        log.info("looking for recipes")
        return ["demo"]

    monkeypatch.setattr("cotswold.recipe.shipped_names", names)
    assert "INFO cotswold: looking for recipes" in cotswold("recipe", "list", "--verbose").err
    assert (log.handlers, log.level) == before
    assert cotswold("recipe", "list").err == ""


def test_quiet_leaves_results_and_errors_but_no_progress_and_no_notes(tmp_path: Path) -> None:
    words = ("bench", "kernels", "--explain", "--layer", "2,8,8,3,1,1,1,4", "--images", "2", "--threads", "1")
    usual, quiet = cotswold(*words), cotswold(*words, "-q")
    assert "1 of 1: layer" in usual.err and quiet.err == ""
    assert quiet.status == 0 and "backend: " in quiet.out
    assert cotswold("report", tmp_path, "-q").error.startswith(f"{tmp_path} is not the directory of a run")


def test_progress_has_more_lines_with_verbose_and_none_with_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def lines(level: str | None) -> int:
        stream = StringIO()
        with monkeypatch.context() as patch:
            if level is not None:
                patch.setenv(terminal.VERBOSITY, level)
            with terminal.progress_bar("reading", "files", stream) as advance:
                for done in range(1, 101):
                    now[0] += 0.25
                    advance(done, 100)
        return len(stream.getvalue().splitlines())

    assert (lines(None), lines(terminal.VERBOSE), lines(terminal.QUIET)) == (5, 25, 0)


def test_debug_of_one_command_is_not_kept_for_the_next() -> None:
    with pytest.raises(Exception, match="nothing"):
        cotswold("info", "nothing", "--debug")
    assert "no recipe file" in cotswold("info", "nothing").error


def test_help_answers_within_half_a_second_of_processor_time() -> None:
    """A busy machine delays the answer, but does not add to the time of the processor."""
    script = (
        "import time\n"
        "from cotswold.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(time.process_time())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout.splitlines()[-1]) < 0.5


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_has_every_command(shell: str) -> None:
    said = cotswold("completion", shell)
    assert said.status == 0 and said.err == ""
    for words in ALL:
        assert re.search(rf"\b{re.escape(words[-1])}\b", said.out), words
    for option in ("--quiet", "--resume-if-started", "--token-file"):
        assert option.lstrip("-") in said.out
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=said.out, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(cotswold("completion", "bash").out)
    (name,) = re.findall(r"^complete .*-F (\S+)", (tmp_path / "script").read_text(), flags=re.MULTILINE)

    def completed(*words: str) -> set[str]:
        asked = " ".join(f"'{word}'" for word in words)
        code = (
            f"source '{tmp_path}/script'; COMP_WORDS=({asked}); COMP_CWORD={len(words) - 1}; "
            f"COMP_LINE='{' '.join(words)}'; COMP_POINT=${{#COMP_LINE}}; {name}; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        return {line.strip() for line in done.stdout.splitlines()}

    assert {"train", "verify"} <= completed("cotswold", "")
    assert completed("cotswold", "tr") == {"train"}
    assert {"start", "status"} <= completed("cotswold", "cluster", "st")
    assert {"--resume", "--resume-if-started"} <= completed("cotswold", "train", "--re")


def test_completion_of_an_unknown_shell_names_the_known_ones() -> None:
    said = cotswold("completion", "tcsh")
    assert said.status == 2 and "bash" in said.error and "fish" in said.error

"""Help and overviews: every command that users are told to type exists."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.cli.command import cotswold

from cotswold.cli.main import COMMANDS, build

LEAVES = [
    *([name] for name in COMMANDS if name not in ("recipe", "data", "bench", "cluster")),
    *(["recipe", name] for name in ("list", "show", "explain")),
    ["serve", "data"],
    *(
        ["cluster", name]
        for name in ("start", "add", "status", "explain", "drain", "remove", "backup", "restore")
    ),
    ["data", "make"],
    ["data", "make", "japanese-ocr"],
]


def examples(text: str) -> list[str]:
    """Return the commands in a help text or a page, with continued lines joined."""
    lines = [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines()]
    return [line for line in lines if re.match(r"(Example: )?cotswold [a-z]+ .*", line)]


def test_a_word_that_is_no_command_takes_nothing_from_the_help_of_others() -> None:
    assert cotswold("servee").status == 2
    assert examples(cotswold("serve", "--help").out)


def typed(line: str) -> list[str]:
    """Return the arguments of a shell line, without redirection, comment and explanation."""
    command = re.split(r"\s{2,}|\s#|\s>", line.removeprefix("Example: "))[0]
    return shlex.split(command)[1:]


def parses(line: str) -> None:
    """Fail if the command, an option or a value of the line does not exist."""
    words = typed(line)
    app = build(words[0])
    _, options, _ = app.meta.parse_args(words, exit_on_error=False, print_error=False)
    command, bound, _ = app.parse_args(options.args, exit_on_error=False, print_error=False)
    assert callable(command) and set(bound.arguments) <= set(inspect.signature(command).parameters)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_help_has_examples_that_parse_and_fits_eighty_columns(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = cotswold(*words, "--help")
    assert said.status == 0
    assert not re.search(r"│ \*  [A-Z]+ --[a-z]+ +\[required\]", said.out), "a parameter without a word"
    found = examples(said.out)
    assert found and all(line.split(": ")[-1].startswith(f"cotswold {' '.join(words)}") for line in found)
    for line in found:
        parses(line)


def test_help_of_the_whole_lists_every_command_with_a_sentence() -> None:
    said = cotswold("--help")
    assert said.status == 0
    for name, (_, sentence) in COMMANDS.items():
        assert re.search(rf"{name} +{re.escape(sentence[:30])}", said.out)
    for line in examples(said.out):
        parses(line)


@pytest.mark.parametrize("name", ["recipe", "data"])
def test_a_group_of_commands_lists_them(name: str) -> None:
    said = cotswold(name, "--help")
    for words in LEAVES:
        if words[0] == name:
            assert words[1] in said.out
    for line in examples(said.out):
        parses(line)
    assert name == "data" or "cotswold recipe show demo > mine.toml" in said.out


def test_help_loads_no_torch_and_answers_within_a_second() -> None:
    script = (
        "import sys\n"
        "from cotswold.cli.main import main\n"
        "for words in WORDS:\n"
        "    try: main([*words, '--help'])\n"
        "    except SystemExit as ended: assert ended.code == 0\n"
        "slow = {'torch', 'numpy', 'zarr', 'pydantic', 'matplotlib', 'PIL'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    ).replace("WORDS", repr([[], *LEAVES]))
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun < 1 + len(LEAVES)  # each within a second, on a machine that is busy


def test_the_version_is_printed() -> None:
    from cotswold import __version__

    assert cotswold("--version").out.strip() == __version__


def test_an_option_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(Exception, match="rum"):
        parses("cotswold train mine.toml --rum runs/mine   # a slip")


def test_shipped_recipes_are_listed_shown_and_explained(tmp_path: Path) -> None:
    listed = cotswold("recipe", "list").out
    for name in ("demo", "cifar10", "faces", "coates2013-1.8b", "coates2013-11b"):
        assert re.search(rf"^{re.escape(name)} ", listed, flags=re.MULTILINE)
        shown = cotswold("recipe", "show", name)
        assert shown.status == 0
        (tmp_path / f"{name}.toml").write_text(shown.out)
        again = cotswold("recipe", "show", tmp_path / f"{name}.toml")
        assert again.out == shown.out
    explained = cotswold("recipe", "explain").out
    for field in ("data.source", "sparsity", "checkpoint_minutes"):
        assert field.rpartition(".")[2] in explained


def test_an_override_is_shown() -> None:
    assert (
        "relative_rate = 0.125"
        in cotswold("recipe", "show", "demo", "--set", "training.relative_rate=0.125").out
    )


@pytest.mark.parametrize(
    ("name", "weights"), [("coates2013-1.8b", 1_802_240_000), ("coates2013-11b", 11_199_485_952)]
)
def test_info_counts_the_papers_networks(name: str, weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(cotswold("info", name, "--no-time", "--json").out)
    assert found["parameters"] == weights
    monkeypatch.setenv("COLUMNS", "80")
    narrow = cotswold("info", name, "--no-time").out.splitlines()
    assert max(len(line) for line in narrow if "│" in line) <= 80
    assert any("update FLOPs" in line and "GFLOP" in line for line in narrow)
    monkeypatch.setenv("COLUMNS", "150")
    said = cotswold("info", name, "--no-time").out
    assert f"parameters: {weights:,}" in said
    lines = said.splitlines()
    assert lines[0] == f"{name}: greedy, batches of 96"
    assert max(map(len, lines)) <= 150
    assert [line.split()[0] for line in lines if "GFLOP" in line] == ["1", "2", "3"]  # no row is folded


def test_info_says_plainly_that_no_batch_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotswold.host.available_bytes", lambda: 1000)
    said = cotswold("info", "demo", "--no-time").out
    assert "fits: no; it does not fit with any batch" in said
    assert "largest batch" not in said
    assert json.loads(cotswold("info", "demo", "--no-time", "--json").out)["largest_batch_that_fits"] == 0

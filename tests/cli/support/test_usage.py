"""Invalid commands are answered with a valid form."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cyclopts import CycloptsError
from PIL import Image
from tests.cli.test_options_of_every_command import ALL
from tests.support.cli.command import cotswold

import cotswold as package
from cotswold.cli import main as main_module
from cotswold.cli.support.usage import sentence as sentence_of


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["train", "demo", "--seed", "3"],
            "train has no option --seed; set the recipe's field by --set training.seed=VALUE.",
        ),
        (["train", "demo", "--patience=3"], "--set training.patience=VALUE."),
        (["train", "demo", "--checkpoint-minutes", "3"], "--set training.checkpoint_minutes=VALUE."),
        (["train", "demo", "--n-workers", "2"], "did you mean --workers?"),
        (["train", "demo", "--lr", "2"], "set the recipe's field by --set training.learning_rate=VALUE."),
        (["train", "demo", "--json"], "--json needs --dry-run; the events of a run are in its events.jsonl"),
        (["train", "demo", "--thread", "2"], "Unknown option: --thread. Did you mean --threads?"),
        (["train", "demo", "--set", "epochs=3"], "epochs is not a key; did you mean training.epochs?"),
        (["evaluate"], "evaluate needs RUN, alone or as --run RUN. See cotswold evaluate --help."),
        (
            ["recipe", "show"],
            "recipe show needs RECIPE, alone or as --recipe RECIPE. See cotswold recipe show --help.",
        ),
        (["serve"], "serve needs --module MODULE. See cotswold serve --help."),
        (["predict", "a", "b", "--top"], "predict needs a value after --top. See cotswold predict --help."),
        (["info", "demo", "one", "more"], "info does not take 'one more'; remove it."),
        (["info", ""], "the recipe's name is empty; give a file, or one of adam-cifar10, "),
        (["simulate", "", "demo"], "the cluster's name is empty; give a file, or one of adam2014,"),
        (["simulate", "--list", "demo"], "take no other arguments"),
        (
            ["cluster", "start", "--listen", "0.0.0.0"],
            "0.0.0.0 is not an address of this host for others",
        ),
        (["cluster", "start", "--listen", "::"], ":: is not an address of this host for others"),
        (["cluster", "start", "--client-address", "0.0.0.0"], "is not an address of this host for others"),
        (["cluster", "start", "--ports", "7400-7409"], "includes the port 7400 of this host's controller"),
        (
            ["cluster", "status", "--watch", "--json"],
            "--watch shows tables; for JSON repeat the command with --json alone",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_sentence_names_what_to_write_instead(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image.png").write_bytes(b"")
    said = cotswold(*words)
    assert said.status == 2
    assert sentence in said.error


def advice(words: Sequence[str]) -> list[list[str]]:
    """Return the ways to complete a command line that the parser's error gives; empty if it needs nothing."""
    app = main_module.build(words[0])
    try:
        app.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        said = sentence_of(error).partition(" needs ")[2].partition(". See cotswold ")[0]
        return [way.split() for way in said.split(", alone or as ")]
    return []


@pytest.mark.parametrize("way", [0, -1], ids=["first way", "last way"])
@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_whoever_follows_the_advice_gets_a_command_that_parses(command: Sequence[str], way: int) -> None:
    words, values = list(command), {"SHELL": "fish"}
    while ways := advice(words):
        assert len(words) < 12, "the advice does not help"
        words += [values.get(word, word.lower()) for word in ways[way]]


@pytest.mark.parametrize(
    "words",
    [
        ["k" * 3000],
        ["train", "k" * 3000],
        ["train", "demo", f"--{'k' * 3000}"],
        ["train", "demo", "--set", f"training.{'k' * 3000}=3"],
        ["train", "demo", "--set", "k" * 3000],
        ["simulate", "k" * 3000, "demo"],
        ["report", "k" * 3000],
        ["verify", "k" * 3000],
        ["evaluate", "demo", "--layers", "k" * 3000, "extra"],
    ],
    ids=lambda words: words[0][:9],
)
def test_words_of_any_length_are_answered_in_a_sentence_that_fits_a_screen(words: list[str]) -> None:
    said = cotswold(*words)
    assert said.status == 2
    assert len(said.error) < 800 and "unexpected" not in said.error


def test_what_a_user_typed_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in cotswold("report", "a\x1b[31mb").err


def test_names_of_files_cannot_steer_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b\x1b[31m.png").write_bytes(b"none")
    said = cotswold("prepare", tmp_path / "in", tmp_path / "s", "--size", 8, "--jobs", 1)
    assert said.status == 0 and "b\\x1b[31m.png: " in said.out
    assert "\x1b" not in said.out + said.err


def test_paragraphs_of_help_are_folded_as_wide_as_the_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # what another command in this process saw is not kept
    assert max(len(line) for line in cotswold("bench", "kernels", "--help").out.splitlines()) == 80
    monkeypatch.setenv("COLUMNS", "1000")
    said = cotswold("bench", "kernels", "--help").out
    for whole in (
        "The peak for products is the fastest dense float32 product of this run (torch.mm, oneDNN, NumPy);",
        "recipe, untied, few, dense, curve, smoothing, bfloat16, memory, start; may be",
    ):
        assert whole in said
    assert '\n  cotswold bench kernels --only untied --only few --match "5 x 5"\n' in said


def run_alone(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def test_the_package_runs_as_a_module() -> None:
    done = run_alone("-m", "cotswold", "--version")
    assert (done.returncode, done.stdout.strip()) == (0, package.__version__)


def test_every_package_is_reached_from_the_first_import_which_loads_none() -> None:
    folder = Path(package.__file__).parent
    inner = {"api", "cli"}
    names = sorted({path.parent.name for path in folder.glob("*/__init__.py")} - inner)
    assert set(names) <= set(package.__all__)
    script = (
        "import sys, cotswold\n"
        "slow = {'torch', 'numpy', 'zarr', 'pydantic', 'PIL'} & set(sys.modules)\n"
        "assert not slow and not [name for name in sys.modules if name.startswith('cotswold.')], slow\n"
        "cotswold.mesh, cotswold.recipe, cotswold.simulate, cotswold.errors\n"
        "assert 'torch' not in sys.modules\n"
        "for name in NAMES: assert getattr(cotswold, name).__name__ == f'cotswold.{name}'\n"
    ).replace("NAMES", repr(names))
    done = run_alone("-c", script)
    assert done.returncode == 0, done.stderr


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No cotswold attribute mash"):
        package.mash  # type: ignore[attr-defined]  # wrong on purpose


def test_threads_of_a_command_that_wait_go_to_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    found: dict[str, str] = {}
    monkeypatch.setattr(main_module, "_run", lambda words: found.update(os.environ) or 0)
    with pytest.raises(SystemExit):
        main_module.main(["info", "demo"])
    assert found["GOMP_SPINCOUNT"] == "5000" and "GOMP_SPINCOUNT" not in os.environ

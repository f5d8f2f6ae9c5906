"""The how-to pages: commands parse, figures are those of result files, tables are those of the package."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import mean, median
from typing import Any, get_args

import pytest
import yaml
from cyclopts.exceptions import MissingArgumentError
from tests.cli.test_help_texts import parses

from cotswold.host.keyring import KeyringFile
from cotswold.host.token import Token
from cotswold.recipe.schema.training import Training

ROOT = Path(__file__).parents[3]
HOW_TO = ROOT / "docs" / "how-to"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(HOW_TO.glob("*.md"))}
SUBJECTS = ("batch", "downpour", "cluster", "operations", "serve", "data-servers", "launching")
"""Pages that divide the subject of several processes."""


def commands(text: str) -> Iterator[str]:
    """Yield the command lines of `cotswold` in blocks of the shell, without what is before and after them."""
    fence = None
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if opening := re.match(r"\s*```(\w*)$", line):
            fence = opening[1] if fence is None else None
        elif fence == "bash" or (fence is None and line.startswith("    ")):
            if found := re.search(r"(?:^|[\s/])(cotswold [a-z]+(?: .*)?)$", line.partition(" #")[0]):
                yield found[1].strip()
        elif fence is None:
            yield from (each for each in re.findall(r"`(cotswold [a-z]+ [^`…]*)`", line) if each[-1] != ":")


LINES = [(name, line) for name, text in PAGES.items() for line in dict.fromkeys(commands(text))]


NAMES = (
    "cotswold serve data",
    "cotswold train --grid",
    "cotswold serve --resume",
    "cotswold train --address",
)
"""Names of commands and options in running text, without their arguments."""


def test_the_pages_have_commands() -> None:
    assert len(LINES) > 40 and len({name for name, _ in LINES}) > 6


@pytest.mark.parametrize(("page", "line"), LINES)
def test_commands_of_the_pages_parse(page: str, line: str) -> None:
    with pytest.raises(MissingArgumentError) if line in NAMES else nullcontext():
        parses(line)


class TestChoice:
    text = PAGES["choose-a-strategy"]

    def results(self, name: str) -> Any:
        return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))

    def row(self, start: str) -> str:
        (line,) = (each for each in self.text.splitlines() if each.startswith(f"| {start}"))
        return line

    def test_every_strategy_has_its_row(self) -> None:
        section = self.text.partition("## What the network learns from")[2].partition("\n## ")[0]
        named = re.findall(r"^\| [^|]* \| `(\w+)` \|", section, flags=re.MULTILINE)
        (union, *_) = get_args(Training)
        known = [each.model_fields["strategy"].default for each in get_args(union)]
        assert sorted(named) == sorted(known)

    def test_speeds_of_replicas_are_medians_of_the_file(self) -> None:
        cells = self.results("downpour")["cells"]
        for start, case, digits in (
            ("two `downpour`", "two", 3),
            ("the same, one replica at", "quarter", 2),
            ("the same, one replica killed", "killed", 2),
        ):
            ratio = median(cell["ratio"] for name, cell in cells.items() if name.startswith(case))
            assert f" | {ratio:.{digits}f} " in self.row(start)

    def test_other_ratios_are_those_of_their_files(self) -> None:
        cases = self.results("batch")["cases"]
        assert {f"{cases[f'two, {kind}']['ratio']:.2f}" for kind in ("bunyip", "sandblaster")} == {"0.93"}
        assert "| 0.93 of their" in self.row("two `batch` workers")
        ratio = self.results("hogwild")["ratio"]
        found = f"{ratio['processes that only compute']:.3f} and {ratio['torch.multiprocessing']:.2f}"
        assert found in self.row("two processes of one replica")
        (step,) = (
            each for each in self.results("plain-loops-intel-amx-1")["rows"] if each["recipe"] == "adam-mnist"
        )
        assert f"{step['times_as_fast']:.2f} times" in self.row("one training step")
        rows = {
            each["who"]: each
            for each in self.results("data-servers")["summary"]["rows"]
            if each["subject"] == "mnist"
        }
        for who in ("data servers", "torch DataLoader"):
            rate = f"{rows[who]['samples_a_second']['median']:,.0f}"
            assert rate in self.row("samples per second of a loader")

    def test_the_faults_are_those_of_the_file(self) -> None:
        quiet, faulty = self.results("fault-training")["trainings"]
        line = self.row("ten minutes of `downpour`")
        assert f"with {len(faulty['faults'])} faults" in line and not quiet["faults"]
        assert f"{faulty['samples_a_second']:,.0f} and {quiet['samples_a_second']:,.0f}" in line
        right, wanted = (100 * each["test"]["right"] for each in (faulty, quiet))
        assert f"{right:.2f} and {wanted:.2f} % of test images" in line

    def test_seconds_to_an_error_are_those_of_the_file(self) -> None:
        found = self.results("batch-vs-sgd")
        seconds = {
            name: next(
                (
                    at
                    for at, error in zip(curve["seconds"], curve["errors"], strict=True)
                    if error <= found["error"]
                ),
                None,
            )
            for name, curve in found["curves"].items()
        }
        line = self.row("seconds to 4 % of validation errors")
        assert f"L-BFGS {seconds['L-BFGS, strong Wolfe']:.1f};" in line
        sgd = sorted(at for name, at in seconds.items() if name.startswith("SGD") and at is not None)
        assert f"SGD with momentum {sgd[0]:.1f}, {sgd[1]:.1f} and {sgd[2]:.1f}," in line

    def test_accuracies_of_stale_replicas_are_those_of_the_files(self) -> None:
        runs: dict[int, list[float]] = {}
        staleness: dict[int, float] = {}
        for name, cell in self.results("staleness")["cells"].items():
            if cell["rule"] == "sgd" and not name.startswith("tune"):
                runs.setdefault(cell["replicas"], []).append(cell["test"])
                staleness[cell["replicas"]] = cell["staleness"]
        assert " | ".join(f"{100 * mean(runs[count]):.1f} %" for count in sorted(runs)) in self.row(
            "MNIST, 784"
        )
        assert " | ".join(f"{staleness[count]:.0f}" for count in sorted(runs)) in self.row("mean staleness")
        assert " | ".join(map(str, sorted(runs))) in self.row("replicas |")
        rows = [each for each in self.results("adam-accuracy")["summary"]["rows"] if each["case"] == "mnist"]
        assert " | ".join(f"{100 * each['test']:.2f} %" for each in rows) in self.row("`adam-mnist`, 15")

    def test_every_page_of_the_subject_leads_here_and_has_its_row(self) -> None:
        for name in SUBJECTS:
            page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
            assert "(how-to/choose-a-strategy.md)" in page.split("\n")[2], name
            assert f"| [{name}.md](../{name}.md) |" in self.text

    def test_the_comparison_with_ddp_that_is_missing_is_still_missing(self) -> None:
        assert "No complete comparison" in self.text
        assert not (ROOT / "benchmarks" / "results" / "ddp.json").exists()


class TestInstall:
    text = PAGES["install"]

    def test_the_table_has_every_extra_with_its_packages(self) -> None:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        table = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", self.text, flags=re.MULTILINE))
        assert table.keys() == extras.keys()
        names = {
            "ray": "Ray",
            "jax": "JAX",
            "triton": "Triton",
            "pyarrow": "PyArrow",
            "tensorboard": "TensorBoard",
        }
        names |= {"wandb": "Weights & Biases", "mlflow-skinny": "MLflow"}
        for extra, packages in extras.items():
            plain = [re.split(r"[><=;\s]", each)[0] for each in packages]
            assert table[extra] == ", ".join(names.get(each, each) for each in plain)

    def test_versions_of_python_are_those_of_the_project(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in self.text


class TestRotation:
    text = PAGES["rotate-tokens"]

    def test_the_steps_lead_from_the_old_token_to_the_new_one(self, tmp_path: Path) -> None:
        old, new = Token.new(), Token.new()
        for name, token in (("token", old), ("new", new)):
            (tmp_path / name).touch(0o600)
            (tmp_path / name).write_text(f"{token.text}\n")
        steps = re.findall(r"```bash\n(.*?)```", self.text, flags=re.DOTALL)
        for step, ring in zip(steps, ([old, new], [new, old], [new]), strict=True):
            subprocess.run(["bash", "-ec", step], cwd=tmp_path, check=True)
            assert KeyringFile(tmp_path / "token").refresh().tokens == tuple(ring)
        assert [each.name for each in tmp_path.iterdir()] == ["token"]


def test_every_page_is_in_the_navigation_and_install_is_first() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    menus = {title: inside for entry in nav for title, inside in entry.items()}
    assert menus["How-to"][0] == "how-to/install.md"
    (project,) = (each["Project"] for each in menus["Explanation"] if "Project" in each)
    assert "how-to/versioning.md" in project
    listed = re.findall(r"how-to/([\w-]+)\.md", yaml.safe_dump(menus["How-to"]))
    assert sorted(listed) == sorted(PAGES.keys() - {"versioning"})

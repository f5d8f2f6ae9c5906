"""The container file: stages, paths, extras and user. No image is built here."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@dataclass
class Stage:
    """One stage: its base and its instructions in order."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [text for each, text in self.instructions if each == name]


def parse(text: str) -> tuple[dict[str, str], dict[str, Stage]]:
    """Return the arguments before the first stage, and the stages by name."""
    text = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for line in filter(None, text.splitlines()):
        name, rest = line.split(maxsplit=1)
        if name == "FROM":
            base, _as, label = rest.split()
            assert _as == "AS" and label not in stages
            stages[label] = Stage(base)
        elif not stages:
            assert name == "ARG"
            key, _, value = rest.partition("=")
            arguments[key] = value
        else:
            assert name in {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "RUN", "USER", "WORKDIR"}, name
            list(stages.values())[-1].instructions.append((name, rest))
    return arguments, stages


ARGUMENTS, STAGES = parse((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def test_every_stage_starts_from_an_earlier_stage_or_the_pinned_python() -> None:
    for at, (name, stage) in enumerate(STAGES.items()):
        earlier = list(STAGES)[:at]
        assert stage.base in earlier or stage.base == "python:${PYTHON}-slim-bookworm", name
        for text in stage.values("COPY"):
            if text.startswith("--from="):
                assert text.split()[0].removeprefix("--from=") in earlier
    assert any(each.endswith(f":: {ARGUMENTS['PYTHON']}") for each in PROJECT["classifiers"])


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_an_image_has_the_package_and_does_not_run_as_root(name: str) -> None:
    stage = STAGES[name]
    assert stage.values("COPY") == [f"--from=build-{name} /opt/cotswold /opt/cotswold"]
    assert stage.instructions[-1] == ("USER", "10001:10001")
    assert stage.base == "runtime" and "--uid 10001" in " ".join(STAGES["runtime"].values("RUN"))
    assert STAGES["runtime"].values("ENTRYPOINT") == [f'["{next(iter(PROJECT["scripts"]))}"]']


def test_copied_paths_exist_and_are_not_ignored() -> None:
    copied = {path for text in STAGES["sources"].values("COPY") for path in text.split()[:-1]}
    assert all((ROOT / path).exists() for path in copied)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_an_image_installs_pinned_versions_and_extras_that_exist(name: str) -> None:
    stage = STAGES[f"build-{name}"]
    (argument,), (command,) = stage.values("ARG"), stage.values("RUN")
    extras = set(argument.partition("=")[2].strip('"[]').split(",")) - {""}
    assert extras <= PROJECT["optional-dependencies"].keys()
    words = shlex.split(command)
    assert words[:3] == ["uv", "pip", "install"] and words[-1] == ".${EXTRAS}"
    for option in ("--constraint", "--build-constraint"):
        assert words[words.index(option) + 1] == "constraints.txt"
    assert ("--torch-backend" in words) == (name == "cpu")


def test_the_page_names_stages_arguments_and_extras_that_exist() -> None:
    page = (ROOT / "docs" / "how-to" / "containers.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--target (\w+)", page)) == {"cpu", "cuda"} <= STAGES.keys()
    inside = {each.partition("=")[0] for stage in STAGES.values() for each in stage.values("ARG")}
    assert set(re.findall(r"--build-arg (\w+)=", page)) <= inside | ARGUMENTS.keys()
    (extras,) = re.findall(r"EXTRAS='\[([\w,]+)\]'", page)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_a_layer_of_packages_leaves_no_index_behind() -> None:
    for stage in STAGES.values():
        for command in stage.values("RUN"):
            if "apt-get install" in command:
                assert "--no-install-recommends" in command and "rm -rf /var/lib/apt/lists/*" in command
            if " pip install" in command:
                assert "--no-cache" in command

"""Workflows, templates and hooks parse, and their steps are targets of the Makefile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]  # it is there
CLASSIFIERS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
PYTHONS = [each.rpartition(" ")[2] for each in CLASSIFIERS if re.search(r":: 3\.\d+$", each)]


def load(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def workflow(name: str) -> dict[Any, Any]:
    return load(ROOT / ".github" / "workflows" / f"{name}.yml")


def steps(found: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in found["jobs"].values() for step in job.get("steps", [])]


def test_workflows_run_what_ci_runs() -> None:
    wanted = set(re.findall(r"^make ([a-z-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    run = "\n".join(str(step.get("run", "")) for path in WORKFLOWS for step in steps(load(path)))
    assert wanted and wanted <= set(re.findall(r"\bmake ([a-z-]+)", run))


def test_every_phony_target_has_a_rule_and_every_rule_that_help_names_is_phony() -> None:
    rules = set(re.findall(r"^([a-z][a-z-]*):(?!=)", MAKEFILE, re.MULTILINE))
    assert rules == TARGETS
    head = MAKEFILE.partition("\n\n")[0]
    assert set(re.findall(r"^# make ([a-z-]+)", head, re.MULTILINE)) == TARGETS - {"help"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_permissions_a_timeout_and_pinned_actions(path: Path) -> None:
    found = load(path)
    assert found["name"] == path.stem
    assert found[True], "YAML reads the key `on` as true"
    assert found["permissions"] == {"contents": "read"}
    assert "concurrency" in found
    for name, job in found["jobs"].items():
        assert "uses" in job or job["timeout-minutes"] <= 120, name
        if "uses" in job:
            called = load(ROOT / job["uses"].removeprefix("./"))
            assert "workflow_call" in called[True]
        for other in [job.get("needs", [])] if isinstance(job.get("needs"), str) else job.get("needs", []):
            assert other in found["jobs"]
    for line in re.findall(r"uses: (.*@.*)", path.read_text(encoding="utf-8")):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), "pin the commit"
    for step in steps(found):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_command_of_a_workflow_is_a_target_of_the_makefile(path: Path) -> None:
    for step in steps(load(path)):
        if "run" in step:
            said = re.fullmatch(r"(?:sudo )?make ([a-z-]+)", step["run"].strip())
            assert said is not None, f"write a target of the Makefile for: {step['run']}"
            assert said[1] in TARGETS, f"the Makefile has no target {said[1]}"
        else:
            assert "uses" in step


def test_workflows_use_one_version_of_each_action() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    found = dict(re.findall(r"uses: ([\w./-]+)@(\S+)", text))
    assert set(re.findall(r"uses: ([\w./-]+)@(\S+)", text)) == set(found.items())


def test_tests_run_on_each_supported_python_and_on_macos() -> None:
    matrix = workflow("tests")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    macos = [each["python"] for each in matrix["include"] if each["system"].startswith("macos")]
    assert macos == [PYTHONS[0], PYTHONS[-1]]


def test_the_wheel_is_installed_on_each_supported_python_and_system() -> None:
    matrix = workflow("wheels")["jobs"]["install"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    assert {each.partition("-")[0] for each in matrix["system"]} == {"ubuntu", "macos"}


def test_the_oldest_supported_python_runs_whatever_needs_one() -> None:
    found = [
        step["with"]["python-version"]
        for path in WORKFLOWS
        for step in steps(load(path))
        if step.get("uses", "").startswith("actions/setup-python@")
    ]
    assert set(found) == {PYTHONS[0], "${{ matrix.python }}"}


def test_all_tenths_of_the_long_tests_run() -> None:
    job = workflow("soak")["jobs"]["soak"]
    assert job["strategy"]["matrix"]["part"] == list(range(1, 11))
    wanted = {"PART": "${{ matrix.part }}/10", "COTSWOLD_SKIPS": "hardware"}
    assert wanted in [step.get("env") for step in job["steps"]]


def test_publishing_follows_tests_and_wheels_and_stores_no_secret() -> None:
    path = ROOT / ".github" / "workflows" / "publish.yml"
    found = load(path)
    assert found[True] == {"push": {"tags": ["v*"]}}
    last = found["jobs"]["publish"]
    assert last["needs"] == ["release", "tests", "wheels"] and last["environment"] == "pypi"
    assert last["permissions"] == {"id-token": "write"}
    others = [job.get("permissions", {}) for name, job in found["jobs"].items() if name != "publish"]
    assert all("id-token" not in each for each in others)
    assert "secrets." not in path.read_text(encoding="utf-8")
    assert {"run": "make check-release"} in found["jobs"]["release"]["steps"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_a_template_of_issues_is_a_form(path: Path) -> None:
    found = load(path)
    if path.stem == "config":
        assert found == {"blank_issues_enabled": False}
        return
    assert found["name"] and found["description"]
    ids = [each["id"] for each in found["body"] if each["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    for each in found["body"]:
        assert each["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert ("value" if each["type"] == "markdown" else "label") in each["attributes"]


def test_hooks_run_the_checks_of_make_check() -> None:
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    entries = {each["id"]: each["entry"].split() for each in repository["hooks"]}
    assert entries.keys() == {"ruff-check", "ruff-format", "mypy"}
    rule = MAKEFILE.partition("\ncheck:")[2].partition("\n\n")[0]
    for entry in entries.values():
        program = entry[0].removeprefix(".venv/bin/")
        assert f"$(BIN)/{program}" in rule
        assert all(each in rule for each in entry[1:] if each != "--force-exclude")

"""README and docs: all names, files, links and commands exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

import pytest
import torch.nn
from cyclopts import MissingArgumentError
from tests.cli.test_help_texts import examples, parses

import cotswold
from cotswold.recipe import Recipe
from cotswold.recipe.field_types import is_section, sections_in
from cotswold.recipe.schema import Section

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "cotswold"
PAGES = [
    *(ROOT / each for each in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PACKAGES = {each.name for each in PACKAGE.iterdir() if each.is_dir()} | {"errors"}
DOTTED = re.compile(r"(?:cotswold\.)?([A-Za-z_]\w*(?:\.\w+)*)\b[^`]*")
FILE = re.compile(r"[\w./-]+/[\w.*-]+(?:\.(?:py|toml|json|svg|md))?")

parametrised = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def spans(page: Path) -> list[str]:
    """Return the texts in backticks on a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`]+)`", text)


def _is_package(found: object) -> TypeGuard[ModuleType]:
    return isinstance(found, ModuleType) and hasattr(found, "__path__")


def resolves(name: str) -> bool:
    """True for a module of Cotswold, or an attribute of one, or of a class in one."""
    found: object = cotswold
    for word in name.split("."):
        if hasattr(found, word):
            found = getattr(found, word)
        elif _is_package(found) and importlib.util.find_spec(f"{found.__name__}.{word}"):
            found = importlib.import_module(f"{found.__name__}.{word}")
        else:
            return word in getattr(found, "__annotations__", {})  # a field without a default
    return True


def is_field(name: str, section: type[Section] = Recipe) -> bool:
    """True for a recipe's field, such as ``network.stacks.0.channels``."""
    word, _, rest = name.partition(".")
    if word.isdigit():
        return is_field(rest, section)
    if word not in section.model_fields:
        return False
    tables = [each for each in sections_in(section.model_fields[word].annotation) if is_section(each)]
    return not rest or any(is_field(re.sub(r"^\d+\.", "", rest), table) for table in tables)


def is_of_a_run(name: str) -> bool:
    """True for an attribute of the ``run`` in the examples."""
    word, _, rest = name.partition(".")
    return word == "run" and hasattr(cotswold.Run, rest.partition(".")[0])


def is_of_torch(name: str) -> bool:
    """True for a name like ``nn.Flatten`` of PyTorch."""
    word, _, rest = name.partition(".")
    return word == "nn" and hasattr(torch.nn, rest)


@parametrised
def test_names_of_the_package_are_those_of_a_module_a_function_or_a_field(page: Path) -> None:
    unknown = []
    groups = re.findall(r'entry-points\."([\w.]+)"', page.read_text(encoding="utf-8"))
    for span in spans(page):
        match = DOTTED.fullmatch(span)
        if match is None or span in groups or re.search(r"\.(py|json|toml|md|svg|NAME)$", span):
            continue
        name = match[1]
        ours = span.startswith("cotswold.") or ("." in name and name.partition(".")[0] in PACKAGES)
        if ours and not (resolves(name) or is_field(name) or is_of_a_run(name) or is_of_torch(name)):
            unknown.append(span)
    assert unknown == []


@parametrised
def test_files_of_the_repository_are_there(page: Path) -> None:
    tops = {"benchmarks", "docs", "examples", "src", "tests"} | PACKAGES
    missing = []
    for span in spans(page):
        if FILE.fullmatch(span) and span.partition("/")[0] in tops and not span.endswith("/"):
            found = [place for base in (ROOT, PACKAGE) for place in base.glob(span)]
            modules = [place for base in (ROOT, PACKAGE) for place in base.glob(f"{span}.py")]
            if not found and not modules:
                missing.append(span)
    assert missing == []


@parametrised
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        place, _, heading = link.partition("#")
        target = page.parent / place if place else page
        assert target.exists(), f"{page.name}: {link}"
        if heading:
            known = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in known]
            assert heading in anchors, f"{page.name}: {link}"


@parametrised
def test_commands_parse(page: Path) -> None:
    placeholder = re.compile(r"\b[A-Z]{3,}\b|--help")
    for line in examples(page.read_text(encoding="utf-8")):
        if not placeholder.search(line):
            parses(line)
    for span in spans(page):
        if re.match(r"cotswold [a-z]+ ", span) and not placeholder.search(span):
            with suppress(MissingArgumentError):  # the text may leave out what does not matter there
                parses(span)


def test_a_name_that_is_gone_is_noticed() -> None:
    assert resolves("mesh.partition") and resolves("launch.watch.failure_detector.FailureDetector")
    assert (
        not resolves("mesh.stack_step")
        and not resolves("data.order.shuffled_twice")
        and not resolves("run.CheckpointManager")
    )
    assert is_field("network.stacks.0.channels") and not is_field("training.rate")

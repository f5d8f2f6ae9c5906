"""`make check-release` names each obstacle to a release."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.release import ROOT, obstacles

import cotswold

VERSION = cotswold.__version__
SOURCES = ("src/cotswold/__init__.py", "src/cotswold/errors.py")
FILES = ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", *SOURCES)


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """Return a checkout that may be released: its address, date and advice are set."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8").partition(f"## [{VERSION}] - ")
    changelog.write_text(f"{text[0]}{text[1]}2026-12-01\n{text[2].partition(chr(10))[2]}", encoding="utf-8")
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text(encoding="utf-8").replace("forge.example", "forge.org"))
    errors = tmp_path / "src/cotswold/errors.py"
    errors.write_text(errors.read_text(encoding="utf-8").replace("'.[{}]'", "'cotswold[{}]'"))
    return tmp_path


def test_a_dated_tagged_and_committed_version_may_be_released(ready: Path) -> None:
    assert obstacles(ready, ["other", f"v{VERSION}"], []) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda root: replaced(root / "CITATION.cff", VERSION, "9.9.9"), "CITATION.cff has version 9.9.9"),
        (
            lambda root: replaced(root / "CHANGELOG.md", "] - 2026-12-01", "] - unreleased"),
            "no date: 'unreleased'",
        ),
        (lambda root: replaced(root / "CHANGELOG.md", f"[{VERSION}] - ", "[0.0.9] - "), "is not version"),
        (lambda root: replaced(root / "pyproject.toml", "forge.org", "forge.example"), "reserved domain"),
        (
            lambda root: replaced(root / "src/cotswold/errors.py", "'cotswold[{}]'", "'.[{}]'"),
            "installs from a checkout",
        ),
        (
            lambda root: replaced(root / "src/cotswold/__init__.py", f'"{VERSION}"', '"9.9.9"'),
            "has no tag v9.9.9",
        ),
    ],
)
def test_an_obstacle_is_named(ready: Path, change: Callable[[Path], None], expected: str) -> None:
    change(ready)
    assert any(expected in each for each in obstacles(ready, [f"v{VERSION}"], []))


def test_a_missing_tag_and_a_changed_file_are_named(ready: Path) -> None:
    assert [each.partition(";")[0] for each in obstacles(ready, [], ["README.md"])] == [
        f"the commit has no tag v{VERSION}, which is the version of the package",
        "1 files differ from the commit, such as README.md",
    ]

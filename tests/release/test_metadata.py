"""Metadata, citation, changelog and the pages for contributors agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from trove_classifiers import classifiers

import cotswold

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
PAPERS = {
    2000: ("Aberdeen", "92¢/MFlops/s"),
    2012: ("Dean", "Large Scale Distributed Deep Networks"),
    2013: ("Coates", "COTS HPC"),
    2014: ("Chilimbi", "Project Adam"),
}
"""First author and part of the title, by year: the four systems of the README."""


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_classifiers_exist_and_fit_the_supported_versions() -> None:
    assert set(PROJECT["classifiers"]) <= classifiers
    found = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert found == ["3.11", "3.12", "3.13", "3.14"]
    assert f">={found[0]}" == PROJECT["requires-python"]
    assert all(f"{each}.0" in SpecifierSet(PROJECT["requires-python"]) for each in found)
    assert re.search(r"^PYTHONS := (.*)$", read("Makefile"), re.MULTILINE)[1].split() == found  # type: ignore[index]  # it is there


def test_addresses_begin_with_that_of_the_repository() -> None:
    urls = PROJECT["urls"]
    assert {"Homepage", "Documentation", "Repository", "Issues", "Changelog"} <= urls.keys()
    assert all(each.startswith(urls["Repository"]) for name, each in urls.items() if name != "Documentation")


def test_the_summary_is_the_first_sentence_of_package_and_citation() -> None:
    summary = PROJECT["description"]
    assert cotswold.__doc__ is not None
    assert cotswold.__doc__.splitlines()[0] == f"Cotswold {summary[0].lower()}{summary[1:]}"
    assert yaml.safe_load(read("CITATION.cff"))["abstract"] == cotswold.__doc__.splitlines()[0]


def test_the_citation_has_the_version_and_the_four_papers() -> None:
    cited = yaml.safe_load(read("CITATION.cff"))
    assert cited["version"] == cotswold.__version__ and cited["license"] == PROJECT["license"]
    assert cited["authors"] == PROJECT["authors"]
    found = {each["year"]: each for each in cited["references"]}
    assert found.keys() == PAPERS.keys() and len(cited["references"]) == len(PAPERS)
    for year, (author, title) in PAPERS.items():
        assert found[year]["authors"][0]["family-names"] == author and title in found[year]["title"]
        assert str(year) in read("README.md")


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    entries = re.findall(r"^## \[(.*?)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert entries[:2] == ["Unreleased", cotswold.__version__]


def groups(name: str) -> list[Requirement]:
    found = []
    for each in PYPROJECT["dependency-groups"][name]:
        found += groups(each["include-group"]) if isinstance(each, dict) else [Requirement(each)]
    return found


def test_constraints_pin_every_direct_dependency() -> None:
    pinned = {
        canonicalize_name(line.partition("==")[0]): Version(line.partition("==")[2])
        for line in read("constraints.txt").splitlines()
        if "==" in line
    }
    extras = [Requirement(each) for group in PROJECT["optional-dependencies"].values() for each in group]
    wanted = [*map(Requirement, PROJECT["dependencies"]), *extras, *groups("dev")]
    versions = {each: pinned.get(canonicalize_name(each.name), Version("0")) for each in wanted}
    assert [str(each) for each, version in versions.items() if version not in each.specifier] == []


def test_tools_of_development_are_no_extra_of_a_release() -> None:
    assert "dev" not in PROJECT["optional-dependencies"]
    names = {each.name for each in groups("dev")}
    assert {"pytest", "ruff", "mypy", "build", "twine", "check-wheel-contents", "hatchling"} <= names


@pytest.mark.parametrize("page", ["SECURITY.md", "CODE_OF_CONDUCT.md", "docs/how-to/versioning.md"])
def test_pages_for_contributors_link_to_files_that_exist(page: str) -> None:
    text = read(page)
    links = [each for each in re.findall(r"\]\(([^)#]+)", text) if "://" not in each]
    assert links and all((ROOT / page).parent.joinpath(each).exists() for each in links)
    assert not re.search(r"\S+@\S+\.\w+", text), "no invented address of a person"

"""The source distribution and the wheel have the same bytes for the same sources, and are complete.

Both are built as `make wheel` does, from two copies of the checkout in different folders, with different
times and modes of files. `make check-wheel` checks what a package index demands.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import cotswold

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
pytestmark = pytest.mark.slow

COMMIT_TIME = 1_800_000_000


def copied_checkout(target: Path, umask: int, time: int) -> Path:
    """Copy the files that git tracks or would add; ``time`` is their modification time."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("the sources are not in a checkout of git")
    previous = os.umask(umask)
    try:
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_bytes((ROOT / name).read_bytes())
                if os.access(ROOT / name, os.X_OK):
                    (target / name).chmod(0o777 & ~umask)
                os.utime(target / name, (time, time))
    finally:
        os.umask(previous)
    return target


def build(checkout: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."],
        cwd=checkout,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(COMMIT_TIME)},
        capture_output=True,
        check=True,
    )
    return checkout / "dist"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(copied_checkout(tmp_path_factory.mktemp("first") / "a", 0o022, 1_700_000_000))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("*.tar.gz")
    return found


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def digests(folder: Path) -> dict[str, str]:
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}


def test_two_builds_of_the_same_sources_have_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    again = build(copied_checkout(tmp_path / "elsewhere" / "b", 0o077, 1_750_000_000))
    assert digests(again) == digests(dist)
    version = cotswold.__version__
    assert digests(dist).keys() == {f"cotswold-{version}.tar.gz", f"cotswold-{version}-py3-none-any.whl"}


def test_archives_have_the_time_of_the_commit(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert len({each.date_time for each in archive.infolist()}) == 1
    with tarfile.open(sdist) as sources:
        assert {each.mtime for each in sources} == {COMMIT_TIME}


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {each for each in archive.namelist() if ".dist-info/" not in each}
    package = ROOT / "src" / "cotswold"
    expected = {
        str(each.relative_to(package.parent))
        for each in package.rglob("*")
        if each.is_file() and "__pycache__" not in each.parts
    }
    assert names == expected
    for needed in ("py.typed", "recipe/shipped/demo.toml", "analysis/report/templates/page.html.j2"):
        assert f"cotswold/{needed}" in names
    assert not [each for each in names if "/tests/" in each or Path(each).name.startswith("test_")]


def test_the_wheel_has_metadata_of_the_whole_product(wheel: Path) -> None:
    found = metadata(wheel)
    assert found["Version"] == cotswold.__version__ and found["License-Expression"] == "Apache-2.0"
    assert found["Author"] == "The Cotswold developers" and found["License-File"] == "LICENSE"
    assert str(found["Summary"]).startswith("Trains PyTorch models")
    assert "dev" not in found.get_all("Provides-Extra", [])
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("entry_points.txt"))
        assert "cotswold = cotswold.cli.main:main" in archive.read(name).decode()


def test_the_readme_of_the_wheel_has_absolute_links(wheel: Path) -> None:
    page = str(metadata(wheel).get_payload())
    assert "# Cotswold" in page and "](docs/" not in page
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(targets) > 20 and [each for each in targets if not each.startswith("https://")] == []
    repository = PROJECT["urls"]["Repository"]
    own = [each.removeprefix(f"{repository}/") for each in targets if each.startswith(repository)]
    assert sum(each.startswith("raw/main/") for each in own) == page.count("![") == 1
    paths = [re.sub(r"^(raw|blob)/main/|#.*$", "", each) for each in own]
    assert [each for each in paths if not (ROOT / each).exists()] == []


def test_the_source_distribution_has_tests_pages_and_what_the_tests_read(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {each.name.partition("/")[2] for each in archive}
        links = [each.name for each in archive if each.issym() or each.islnk()]
    for needed in (
        "src/cotswold/py.typed",
        "tests/conftest.py",
        "docs/privacy.md",
        "examples",
        "benchmarks/results",
        "Makefile",
        "constraints.txt",
        "SECURITY.md",
        "CITATION.cff",
        ".github/workflows/tests.yml",
        "Dockerfile",
    ):
        assert any(each == needed or each.startswith(f"{needed}/") for each in names), needed
    assert links == []
    unwanted = (".venv", ".git/", "dist")
    assert not [each for each in names if "__pycache__" in each or each.startswith(unwanted)]

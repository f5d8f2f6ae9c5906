"""The steps of a build: stage pages, write the reference, expand the navigation, run the site builder.

Knows: the order of the steps and their folders. Does not know: what a page says.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml
from docs.generator.errors import SiteError
from docs.generator.navigation import expand
from docs.generator.reference import reference_pages
from docs.generator.stage import stage

__all__ = ["SiteError", "build", "check_hosts"]

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_EXTERNAL = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(https?:)?//[^>]*>", re.IGNORECASE
)
_ALLOWED = re.compile(r"rel=\"?canonical")


def build(root: Path, work: Path, site: Path, generated: Mapping[str, str] | None = None) -> None:
    """Build the site without network; warnings are errors.

    Args:
        root: the repository.
        work: a folder for staged pages; replaced.
        site: the folder of the finished site; replaced.
        generated: text of generated pages by path [the whole reference].

    Raises:
        SiteError: if a link, a reference or a page of the navigation is missing, if a page loads something
            from another host, or if the site builder fails.
    """
    for folder in (work, site):
        shutil.rmtree(folder, ignore_errors=True)
    pages = work / "pages"
    generated = reference_pages() if generated is None else generated
    stage(root, pages, generated)
    settings = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
    settings["nav"] = expand(settings["nav"], pages)
    settings["docs_dir"] = "pages"
    settings["site_dir"] = "site"
    handler = settings["plugins"][-1]["mkdocstrings"]["handlers"]["python"]
    handler["paths"] = [str(root / "src")]
    handler["options"]["extensions"] = [str(Path(__file__).with_name("docstrings.py"))]
    file = work / "mkdocs.yml"
    file.write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8")
    _run_builder(file)
    check_hosts(work / "site")
    shutil.move(work / "site", site)


def _run_builder(file: Path) -> None:
    """Run Zensical; its warnings end the build."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = _COLOURS.sub("", done.stdout + done.stderr)
    if done.returncode or "Warning:" in said:
        before, _, _ = said.partition("Traceback (most recent call last)")
        raise SiteError(f"the site has errors; repair these links and references:\n{before.strip() or said}")


def check_hosts(site: Path) -> None:
    """Raise SiteError if a page loads a script, a style, a font or an image from another host."""
    for page in sorted(site.rglob("*.html")):
        for found in _EXTERNAL.finditer(page.read_text(encoding="utf-8")):
            if not _ALLOWED.search(found[0]):
                place = page.relative_to(site)
                raise SiteError(f"{place} loads from another host: {found[0]}; copy the file to docs/assets")

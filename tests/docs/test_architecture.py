"""docs/architecture.md and its drawing name every package of Cotswold, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "cotswold"
PACKAGES = sorted(
    [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()] + ["errors", "phrases"]
)


def test_the_table_has_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| package |")[2].partition("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(first))) == PACKAGES


def test_the_drawing_has_every_package() -> None:
    drawing = (ROOT / "docs" / "figures" / "packages.svg").read_text(encoding="utf-8")
    assert sorted(re.findall(r'<text class="name"[^>]*>(\w+)<', drawing)) == PACKAGES


def test_folders_and_modules_stay_small() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    long = [path.name for path in modules if len(path.read_text(encoding="utf-8").splitlines()) > 400]
    assert not long, f"split modules of more than 400 lines: {long}"
    folders = {path.parent for path in modules}
    crowded = [folder.name for folder in folders if len([*folder.glob("[!_]*.py")]) > 20]
    assert not crowded, f"split folders of more than 20 modules: {crowded}"

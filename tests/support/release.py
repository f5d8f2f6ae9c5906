"""Obstacles to a release; ``python -m tests.support.release`` (`make check-release`) prints them.

Knows: the files and the tag that name the version, and the places that change with the first release. Does
not know: tests, builds, package indexes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def constant(path: Path, name: str) -> str:
    """Return a string constant of a module without importing the module."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == [name]:
            return str(ast.literal_eval(node.value))
    raise LookupError(f"{path} has no constant {name}")


def obstacles(root: Path, tags: list[str], changes: list[str]) -> list[str]:
    """Return one sentence for each obstacle.

    Args:
        root: The checkout.
        tags: Tags of the commit.
        changes: Files that differ from the commit.
    """
    version = constant(root / "src" / "cotswold" / "__init__.py", "__version__")
    cited = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    entries = re.findall(
        r"^## \[(\d\S*)\] - (.*)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    said = []
    if f"v{version}" not in tags:
        said.append(f"the commit has no tag v{version}, which is the version of the package; create it")
    if str(cited) != version:
        said.append(f"CITATION.cff has version {cited}, and the package {version}; change one")
    if not entries or entries[0][0] != version:
        said.append(f"the newest entry of CHANGELOG.md is not version {version}; add it")
    elif not re.fullmatch(r"\d{4}-\d{2}-\d{2}", entries[0][1]):
        said.append(f"CHANGELOG.md gives version {version} no date: '{entries[0][1]}'; write YYYY-MM-DD")
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    if reserved := sorted(set(re.findall(r"[\w.-]+\.example\b", text))):
        said.append(
            f"pyproject.toml has the reserved domain {', '.join(reserved)}; "
            "write the address of the repository"
        )
    if ".[" in constant(root / "src" / "cotswold" / "errors.py", "INSTALL"):
        said.append("INSTALL in src/cotswold/errors.py installs from a checkout; name the package instead")
    if changes:
        said.append(f"{len(changes)} files differ from the commit, such as {changes[0]}; commit them")
    return said


def main() -> int:
    """Print the obstacles of this checkout."""

    def git(*arguments: str) -> list[str]:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        ).stdout.splitlines()

    changes = [each[3:] for each in git("status", "--porcelain")]
    said = obstacles(ROOT, git("tag", "--points-at", "HEAD"), changes)
    print("\n".join(said) or "nothing forbids a release")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())

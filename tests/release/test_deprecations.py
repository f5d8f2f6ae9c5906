"""Each deprecation names its replacement and the version of its removal (docs/how-to/versioning.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import cotswold

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "versioning.md"
(BLOCK,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
"""The example of the page."""
MESSAGE = re.compile(
    r"(?P<name>\S+) is deprecated and will be removed in Cotswold (?P<version>\d+\.\d+(\.\d+)?); use \S.*"
)


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def deprecations(source: str) -> Iterator[ast.Call]:
    """Yield the calls that declare a deprecation: decorators, and warnings of the two categories."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        values = [*node.args, *(each.value for each in node.keywords)]
        warns = name_of(node.func) in ("warn", "warn_explicit")
        categories = {"DeprecationWarning", "PendingDeprecationWarning", "FutureWarning"}
        if name_of(node.func) == "deprecated" or (warns and categories & {name_of(each) for each in values}):
            yield node


def faults(source: str, changelog: str, version: str) -> list[str]:
    """Describe what is wrong with each deprecation in a module."""
    found = []
    for call in deprecations(source):
        text = ast.unparse(call.args[0]) if call.args else ""
        is_literal = bool(call.args) and isinstance(call.args[0], ast.Constant)
        said = MESSAGE.fullmatch(str(ast.literal_eval(text))) if is_literal else None
        section = changelog.partition("### Deprecated")[2].partition("\n#")[0]
        if said is None:
            found.append(f"line {call.lineno}: the message has another form than in versioning.md: {text}")
        elif Version(said["version"]) <= Version(version):
            found.append(f"line {call.lineno}: {said['name']} was to be removed in {said['version']}")
        elif f"`{said['name']}`" not in section:
            found.append(f"line {call.lineno}: CHANGELOG.md does not name {said['name']} under Deprecated")
    return found


def test_deprecations_in_the_package_name_replacement_and_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = {
        str(path.relative_to(ROOT)): said
        for path in sorted((ROOT / "src").rglob("*.py"))
        if (said := faults(path.read_text(encoding="utf-8"), changelog, cotswold.__version__))
    }
    assert found == {}


(GOOD,) = (str(ast.literal_eval(call.args[0])) for call in deprecations(BLOCK))
"""The message of the page: train_old, which 0.3 removes and train replaces."""
CHANGELOG = "## [0.2.0]\n\n### Deprecated\n\n- `train_old`: use `train`.\n\n### Fixed\n"


@pytest.mark.parametrize(
    "form", ["@deprecated({!r})\ndef f(): ...", "warnings.warn({!r}, DeprecationWarning)"]
)
@pytest.mark.parametrize(
    ("text", "changelog", "version", "expected"),
    [
        (GOOD, CHANGELOG, "0.2.0", ""),
        ("train_old is old", CHANGELOG, "0.2.0", "another form"),
        (GOOD.partition("; use")[0], CHANGELOG, "0.2.0", "another form"),
        (GOOD, CHANGELOG, "0.3.0", "was to be removed in 0.3"),
        (GOOD, CHANGELOG.replace("train_old", "other"), "0.2.0", "does not name train_old"),
    ],
)
def test_a_deprecation_without_its_parts_is_found(
    form: str, text: str, changelog: str, version: str, expected: str
) -> None:
    said = faults(form.format(text), changelog, version)
    assert len(said) == (expected != "") and all(expected in each for each in said)


def test_the_function_of_the_page_warns_with_the_line_of_the_caller() -> None:
    names: dict[str, Any] = {}
    exec(compile(BLOCK, PAGE.name, "exec"), names)
    with pytest.warns(DeprecationWarning, match=re.escape(GOOD)) as caught:
        names["train_old"]("demo")
    assert caught[0].filename == __file__


def test_the_page_shows_a_message_that_passes() -> None:
    assert faults(BLOCK, CHANGELOG, "0.2.0") == []

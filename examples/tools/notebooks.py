"""Write four examples as notebooks, without outputs.

    python examples/tools/notebooks.py

A notebook has the code of its program: the imports, the functions, and each paragraph of `main` in a cell.
Tests execute the notebooks, and compare them with the output of this command.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1]
NOTEBOOKS = EXAMPLES / "notebooks"
NAMES = ("untied", "burgers", "paper_figure", "few_labels")


def settings(directory: str, is_short: bool) -> str:
    """Return the code of the cell that sets the arguments of `main`."""
    return f'out, short = Path("{directory}"), {is_short}'


def cells(name: str) -> list[tuple[str, str]]:
    """Return the type and the text of each cell of an example's notebook."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    lines, tree = text.splitlines(), ast.parse(text)
    title, _, about = (ast.get_docstring(tree) or "").partition("\n")
    about = re.sub(r"^    (.*)$", r"The program: `\1`", about, flags=re.MULTILINE)
    found = [("markdown", f"# {title}\n\n{about.strip()}")]
    last = tree.body[0].end_lineno or 0
    for node in (each for each in tree.body[1:] if not isinstance(each, ast.If)):
        part = "\n".join(lines[last : node.end_lineno]).strip("\n")
        if isinstance(node, ast.FunctionDef) and node.name == "main":
            found.append(("code", settings(f"runs/{name}", False)))
            found += [("code", each) for each in _paragraphs(node, lines)]
        elif not part.startswith("from argparse "):
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            if is_import and found[-1][1].startswith(("import ", "from ")):
                blank = "\n" if lines[last] else "\n\n"
                found[-1] = ("code", found[-1][1] + blank + part)
            else:
                found.append(("code", part))
        last = node.end_lineno or 0
    return found


def _paragraphs(main: ast.FunctionDef, lines: list[str]) -> list[str]:
    """Return the statements of a function, separated at blank lines between them."""
    found: list[str] = []
    last = main.body[0].lineno - 1
    for node in main.body:
        part = "\n".join(lines[last : node.end_lineno])
        if found and part.startswith("\n"):
            found.append(part.strip("\n"))
        else:
            found[-1:] = ["\n".join([*found[-1:], part])]
        last = node.end_lineno or 0
    return [textwrap.dedent(each) for each in found]


def notebook(name: str) -> str:
    """Return the JSON of an example's notebook."""
    written: list[dict[str, object]] = []
    for number, (kind, text) in enumerate(cells(name)):
        cell: dict[str, object] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        cell["source"] = text.splitlines(keepends=True)
        written.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    document = {"cells": written, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOKS.mkdir(exist_ok=True)
    for each in NAMES:
        (NOTEBOOKS / f"{each}.ipynb").write_text(notebook(each), encoding="utf-8")

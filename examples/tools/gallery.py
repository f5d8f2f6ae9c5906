"""Make the pictures of docs/gallery.md: run each example as its docstring says, and keep its picture.

    python examples/tools/gallery.py [NAME ...]

Without names it runs all examples with a picture, which takes about ten minutes on two cores.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "figures" / "gallery"
NAMES = (
    *("untied", "untie", "lbfgs_ddp", "burgers", "async_loops", "three_machines", "unet"),
    *("data_servers_ddp", "paper_figure", "few_labels"),
)
"""Examples with a picture, in the order of the page."""


def said(name: str) -> str:
    """Return the command line in the docstring of an example."""
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    (line,) = (each.strip() for each in lines if each.startswith("    ") and f"examples/{name}.py" in each)
    return line


def command(name: str, directory: Path, python: tuple[str, ...] = (sys.executable,)) -> list[str]:
    """Return the words that start an example, with its output in a directory."""
    words: list[str] = []
    for word in shlex.split(said(name)):
        if word == "python":
            words += python
        elif word == "torchrun":
            words += [sys.executable, "-m", "torch.distributed.run"]
        elif word.startswith("runs/"):
            words.append(str(directory))
        else:
            words.append(str(ROOT / word) if word.startswith("examples/") else word)
    return words


def draw(name: str) -> Path:
    """Run an example, and return its picture in the repository."""
    settings = {"MATPLOTLIBRC": str(ROOT / "examples" / "tools" / "matplotlibrc"), "SOURCE_DATE_EPOCH": "0"}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / name
        subprocess.run(command(name, directory), cwd=ROOT, env={**os.environ, **settings}, check=True)
        return Path(shutil.copy(directory / f"{name}.svg", PICTURES))


if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(NAMES)
    if unknown:
        sys.exit(f"no example with a picture: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    PICTURES.mkdir(parents=True, exist_ok=True)
    for each in sys.argv[1:] or NAMES:
        print(draw(each))

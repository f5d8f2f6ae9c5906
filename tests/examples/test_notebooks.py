"""Notebooks of `examples` have the code of their programs and no outputs, and run in a kernel."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from examples.tools import notebooks
from nbclient import NotebookClient
from tests.support.examples.gallery import environment

SECONDS = 300


def of(name: str) -> Path:
    return notebooks.NOTEBOOKS / f"{name}.ipynb"


def test_the_folder_has_four_notebooks() -> None:
    assert sorted(each.stem for each in notebooks.NOTEBOOKS.glob("*.ipynb")) == sorted(notebooks.NAMES)
    assert len(notebooks.NAMES) == 4


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_has_the_code_of_its_program(name: str) -> None:
    assert of(name).read_text(encoding="utf-8") == notebooks.notebook(name), (
        "python examples/tools/notebooks.py writes the notebooks again"
    )


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_no_statement_of_a_program_is_missing_in_its_notebook(name: str) -> None:
    text = (notebooks.EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    program = text.partition('"""\n\n')[2].partition('\nif __name__ == "__main__":')[0]
    kept = [each.strip() for each in program.splitlines() if each.strip()]
    cells = [code for kind, code in notebooks.cells(name) if kind == "code"]
    written = [each.strip() for code in cells for each in code.splitlines() if each.strip()]
    written.remove(notebooks.settings(f"runs/{name}", False))
    kept.remove("from argparse import ArgumentParser, RawDescriptionHelpFormatter")
    kept.remove("def main(out: Path, short: bool) -> None:")
    assert written == kept


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_is_valid_and_has_no_outputs(name: str) -> None:
    nbformat.validate(nbformat.read(of(name), as_version=4))
    cells = [each for each in json.loads(of(name).read_text())["cells"] if each["cell_type"] == "code"]
    assert cells
    assert [each for each in cells if each["outputs"] or each["execution_count"] or each["metadata"]] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's own libraries
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.soak) if each == "untied" else each for each in notebooks.NAMES],
)
def test_a_notebook_runs_in_a_kernel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in environment().items():
        monkeypatch.setenv(variable, value)
    notebook = nbformat.read(of(name), as_version=4)
    (arguments,) = (
        each for each in notebook.cells if each.source == notebooks.settings(f"runs/{name}", False)
    )
    arguments.source = notebooks.settings(str(tmp_path), True)
    folder = {"metadata": {"path": str(notebooks.NOTEBOOKS)}}
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=folder).execute()
    kinds = [each.output_type for cell in notebook.cells if cell.cell_type == "code" for each in cell.outputs]
    assert "display_data" in kinds and "error" not in kinds
    assert (tmp_path / f"{name}.svg").stat().st_size > 1000

"""Names of `import cotswold`, and the cost of the import."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import cotswold

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
MODULES_MOST = 120
"""Most modules loaded by a first import, including Python's own; numpy alone loads 150, torch a thousand."""


def test_the_public_names_are_those_that_the_page_lists() -> None:
    table = PAGE.read_text().partition("## What is public")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `cotswold\.(\w+)", table, flags=re.MULTILINE)
    packages = re.search(r"The sub-packages(.*?)\.\n", table, flags=re.DOTALL)
    assert packages is not None
    listed = [*named, *re.findall(r"`(\w+)`", packages[1])]
    assert sorted(listed) == sorted(set(cotswold.__all__) - {"__version__"})


@pytest.mark.parametrize("name", sorted(cotswold.__all__))
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(cotswold, name)
    assert name == "__version__" or found.__doc__


def test_importing_cotswold_loads_no_torch_and_few_modules() -> None:
    script = "import json, sys, cotswold; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    assert not {"torch", "numpy", "rich", "pydantic", "matplotlib"} & set(modules)
    assert len(modules) < MODULES_MOST


def test_the_verbs_are_there_before_torch_is() -> None:
    verbs = {name for name in cotswold.__all__ if not isinstance(getattr(cotswold, name), ModuleType | str)}
    script = (
        "import sys, cotswold\n"
        "for name in VERBS:\n"
        "    getattr(cotswold, name)\n"
        "    assert 'torch' not in sys.modules, name\n"
    ).replace("VERBS", repr(sorted(verbs - {"partition"})))  # which takes a module of torch
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

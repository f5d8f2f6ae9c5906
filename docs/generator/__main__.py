"""Entry point of ``python -m docs.generator``."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generator.build import SiteError, build

ROOT = Path(__file__).parents[2]

try:
    build(ROOT, ROOT / "build" / "docs", ROOT / "site")
except SiteError as error:
    sys.exit(f"docs: {error}")

"""When the first checkpoint of a run is written, and what is said of a run that has none.

Knows: one time. Does not know: what is saved.
"""

from __future__ import annotations

FIRST_SAVE_SECONDS = 15.0
"""Seconds of training after which the first checkpoint is due, unless checkpoints are more frequent."""
NOTHING_SAVED = f"nothing was saved yet, as in the first {FIRST_SAVE_SECONDS:g} s of training; it begins anew"

"""Time of a run's first checkpoint, and the message about runs without one.

Knows: one time. Does not know: what is saved.
"""

from __future__ import annotations

FIRST_SAVE_SECONDS = 15.0
"""Seconds of training until the first checkpoint, unless checkpoints are more frequent."""
NOTHING_SAVED = (
    f"nothing was saved yet, as in the first {FIRST_SAVE_SECONDS:g} s of training; the run starts again"
)

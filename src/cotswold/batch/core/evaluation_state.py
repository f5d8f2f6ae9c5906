"""States of an evaluation, and the allowed transitions."""

from __future__ import annotations

from enum import Enum


class EvaluationState(Enum):
    """State of an evaluation."""

    OPENING = "opening"
    COMPUTING = "computing"
    DRAINING = "draining"
    REDUCING = "reducing"
    CLOSING = "closing"
    FINISHED = "over"


NEXT = {
    EvaluationState.OPENING: {EvaluationState.COMPUTING},
    EvaluationState.COMPUTING: {EvaluationState.DRAINING, EvaluationState.CLOSING},
    EvaluationState.DRAINING: {EvaluationState.COMPUTING, EvaluationState.REDUCING, EvaluationState.CLOSING},
    EvaluationState.REDUCING: {EvaluationState.DRAINING, EvaluationState.CLOSING},
    EvaluationState.CLOSING: {EvaluationState.FINISHED},
    EvaluationState.FINISHED: set[EvaluationState](),
}
"""Allowed transitions between states."""

"""Jobs and tasks of product kernels: the integers that compiled code reads.

Knows: the order of fields. Does not know: who fills or reads them.
"""

from __future__ import annotations

from enum import IntEnum


class ProductJob(IntEnum):
    """Fields of a job, 64-bit integers: pointers, strides in elements, counters."""

    TASKS = 0
    TASK_COUNT = 1
    ENTRIES = 2
    ROW_TILES = 3
    LANE_TILES = 4
    OFFSETS = 5
    A = 6
    B = 7
    C = 8
    A_PITCH = 9
    B_PITCH = 10
    NEXT = 11
    CLAIM = 12
    K_BLOCK = 13
    SCRATCH = 14
    SLOTS = 15
    SLOT_SIZE = 16
    SCRATCH_PITCH = 17
    IMAGES = 18
    SECOND_B = 19
    FILTERS = 20
    MOMENTUM = 21
    NORMS = 22
    CONSTANTS = 23
    FILTER_PITCH = 24
    FILTER_ROWS = 25
    GRADIENT = 26
    BIASES = 27
    PACKED_A = 28
    SUMS = 29
    ACCUMULATE = 30
    PANELS = 31
    FIELDS = 32


class Task(IntEnum):
    """Fields of a task."""

    ENTRY = 0
    ENTRIES = 1
    A = 2
    B = 3
    C = 4
    ROW_TILE = 5
    ROW_TILES = 6
    LANE_TILE = 7
    LANE_TILES = 8
    OFFSET = 9
    LANES = 10
    NEURON = 11
    NORM = 12
    PADDED = 13
    FIELDS = 14

"""Jobs of product kernels and the records of their tables: the integers that compiled code reads.

Knows: the names of fields. Does not know: who fills or reads them.
"""

from __future__ import annotations

from cotswold.kernels.compile.jobs import Fields, JobFields

JOB = JobFields(
    *("claim", "task_table", "entries", "row_tiles", "lane_tiles", "offsets"),
    *("a", "b", "c", "a_pitch", "b_pitch", "k_block", "scratch_pitch", "images", "second_b"),
    *("filters", "momentum", "norms", "constants", "filter_pitch", "filter_rows", "gradient", "biases"),
    *("packed_a", "sums", "accumulate", "panels"),
)
"""Addresses, strides in elements, counters; ``claim`` is the tasks that a thread takes at a time."""
TASK = Fields(
    *("entry", "entries", "a", "b", "c", "row_tile", "row_tiles", "lane_tile", "lane_tiles"),
    *("offset", "lanes", "neuron", "norm", "padded"),
)
ENTRY = Fields("a", "b", "k", "ahead")
"""An entry: its offset in A, its offset in B, its k, and its prefetch distance in A."""
ROW_TILE = Fields("row", "height", "a")
"""A tile of rows: first row in the offsets, index of its height, offset of its A."""
LANE_TILE = Fields("lane", "variant", "last")
"""A tile of lanes: first lane, variant, lanes in the last vector."""

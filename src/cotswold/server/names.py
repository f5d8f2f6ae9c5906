"""Names of buckets: whose each is, and its number.

Knows: how a name is made. Does not know: what a bucket holds, who has it.
"""

from __future__ import annotations


def bucket_of(run: str, number: int) -> str:
    """The name of a run's bucket."""
    return f"{run}/{number:04}"


def run_of(bucket: str) -> str:
    """Whose bucket it is; empty for a name that no run has made."""
    return bucket.rpartition("/")[0]


def spoken(bucket: str) -> str:
    """A bucket as people are told of it.

    >>> spoken("faces-7f/0017"), spoken("bucket 3")
    ('bucket 17 of faces-7f', 'bucket 3')
    """
    run, _, number = bucket.rpartition("/")
    return f"bucket {int(number)} of {run}" if run and number.isdecimal() else bucket

"""Names of runs and buckets: whose each is, and its number; and how many there are, in words.

Knows: how a name is made. Does not know: what a bucket holds, who has it.
"""

from __future__ import annotations

import re

_RUN = re.compile(r"[A-Za-z0-9._-]+")


def is_run(name: str) -> bool:
    """Whether a run may be called so: its name is that of a folder, too.

    >>> is_run("c83a0b833eac6e20"), is_run("../x"), is_run("..")
    (True, False, False)
    """
    return _RUN.fullmatch(name) is not None and name not in (".", "..")


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

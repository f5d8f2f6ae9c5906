"""Names of runs and buckets: the run and the number in a bucket's name, and its form for people.

Knows: how a name is built. Does not know: the contents of a bucket, its servers.
"""

from __future__ import annotations

import re

_RUN = re.compile(r"[A-Za-z0-9._-]+")


def is_run(name: str) -> bool:
    """True if ``name`` is a valid run name, which is also a valid folder name.

    >>> is_run("c83a0b833eac6e20"), is_run("../x"), is_run("..")
    (True, False, False)
    """
    return _RUN.fullmatch(name) is not None and name not in (".", "..")


def bucket_of(run: str, number: int) -> str:
    """Return the name of bucket ``number`` of a run."""
    return f"{run}/{number:04}"


def run_of(bucket: str) -> str:
    """Return the run of a bucket; empty for a name that was not built from a run."""
    return bucket.rpartition("/")[0]


def display_name(bucket: str) -> str:
    """Return a bucket's name in the form that people read.

    >>> display_name("faces-7f/0017"), display_name("bucket 3")
    ('bucket 17 of faces-7f', 'bucket 3')
    """
    name, run = display_name_without_run(bucket), run_of(bucket)
    return f"{name} of {run}" if name != bucket else bucket


def display_name_without_run(bucket: str) -> str:
    """Return a bucket's name in the form that people read, without its run.

    >>> display_name_without_run("faces-7f/0017"), display_name_without_run("bucket 3")
    ('bucket 17', 'bucket 3')
    """
    run, _, number = bucket.rpartition("/")
    return f"bucket {int(number)}" if run and number.isdecimal() else bucket

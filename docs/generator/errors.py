"""The error of a build.

Knows: nothing else.
"""

from __future__ import annotations


class SiteError(Exception):
    """A site that cannot be built; the message names the page and the remedy."""

"""Estimators with the interface of scikit-learn: full-batch networks, and features of greedy stacks.

The names load at their first use, and scikit-learn with them (extra ``sklearn``).
"""

from __future__ import annotations

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Load a name; raises MissingExtraError without scikit-learn."""
    if name in __all__:
        try:
            import sklearn  # noqa: F401
        except ImportError as error:
            from cotswold.errors import MissingExtraError, install

            raise MissingExtraError(
                f"cotswold.sklearn needs scikit-learn; install it: {install('sklearn')}"
            ) from error
    return _load(name)

from .characters import classes as classes

__all__ = ["classes"]

from .gradient import filter_gradient as filter_gradient

__all__ = ["filter_gradient"]

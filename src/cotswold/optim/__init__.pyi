from .schedule import Schedule as Schedule
from .schedule import rate_at as rate_at

__all__ = ["Schedule", "rate_at"]

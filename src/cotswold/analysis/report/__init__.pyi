from .build import LeftOut as LeftOut
from .build import build_report as build_report

__all__ = ["LeftOut", "build_report"]

from .build import SkippedSamples as SkippedSamples
from .build import build_report as build_report

__all__ = ["SkippedSamples", "build_report"]

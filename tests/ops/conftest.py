from __future__ import annotations

from hypothesis import settings

# no deadline: on a busy machine the slowest example says nothing about the code
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# Examples are many, and a busy machine is no fault of what is tested.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

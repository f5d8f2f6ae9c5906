"""A bucket that survives: its primary, its secondaries, and who elects them."""

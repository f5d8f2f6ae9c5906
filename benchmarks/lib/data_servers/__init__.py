"""Data servers beside other programs that feed trainers: what is fed, how each case is measured and shown."""

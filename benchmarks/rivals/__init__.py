"""Other programs that feed trainers, each run as ``python -m rivals.NAME JSON`` by a Python that has it."""

"""Data servers compared with other loaders that feed trainers: subjects, measurement, plots."""

"""Stores of prepared samples: layout, manifest, journal, preparation."""

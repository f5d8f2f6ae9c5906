"""Predicted updates compared with measured updates."""

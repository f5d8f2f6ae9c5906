"""Predicted updates beside measured ones."""

"""Readers of file formats: images, arrays, idx, zip archives."""

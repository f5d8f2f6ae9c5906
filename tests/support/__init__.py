"""Helpers that several packages of tests share."""

"""Seeded lives of servers that keep copies, in which anything may happen, and what must be true of them."""

"""Rent burst capacity, watch it and release it."""

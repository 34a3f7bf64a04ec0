"""Rent burst capacity, watch it and give it back."""

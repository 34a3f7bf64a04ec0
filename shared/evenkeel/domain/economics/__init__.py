"""Costs of nodes and of lost time, and expected durations."""

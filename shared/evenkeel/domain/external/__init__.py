"""Workloads that Evenkeel does not run: other pods, Kueue."""

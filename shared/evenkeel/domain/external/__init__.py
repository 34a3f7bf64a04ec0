"""Workloads and systems beside Evenkeel: Kueue, serving workloads and unmanaged pods."""

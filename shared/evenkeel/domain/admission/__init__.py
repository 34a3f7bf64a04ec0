"""Admission rules: which job is next, where it fits, and which jobs are preempted for it."""

"""Decisions and their values: pure functions of facts, the policy and the time."""

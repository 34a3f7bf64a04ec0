"""Use cases: load, decide, act, record."""

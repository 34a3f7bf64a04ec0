"""Benchmarks: the overhead of the product over the bare engine, as ratios measured in one run."""

"""Benchmarks: what the product adds to what the engine costs anyway, as ratios taken in one run."""

"""Whether and where to rent burst capacity, the state of each rental, and when to release it."""

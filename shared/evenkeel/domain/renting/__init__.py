"""When and where to rent burst capacity, and when to release it."""

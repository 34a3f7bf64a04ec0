"""Publish events on the bus, and messages for chat."""

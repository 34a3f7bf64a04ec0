"""Outbound texts: events on the bus, messages for chat, and pages."""

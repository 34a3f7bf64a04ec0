"""Outbound texts: events on the bus, messages for chat, and alerts for the on-call person."""

"""Guardrails, the repair ladder and the resume plan."""

"""Incidents for the API: lists, the workflow, guardrails, and the report of the mode `observe`."""

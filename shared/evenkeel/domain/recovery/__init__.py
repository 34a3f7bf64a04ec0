"""Decisions of a recovery: plan, drain, guardrails, repair ladder, validation, and how an interrupted job resumes."""

"""Ingest node-health events, open incidents and settle them."""

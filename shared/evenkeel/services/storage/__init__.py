"""Rows and records in the ledger: keys, documents, locks, paging, heartbeats."""

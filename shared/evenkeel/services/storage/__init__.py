"""Records in the ledger that several services use, with commits, locks, paging and heartbeats."""

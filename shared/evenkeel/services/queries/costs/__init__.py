"""Costs for the API: reports, receipts and showback, from the records of a window."""

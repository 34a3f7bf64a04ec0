"""Costs of failures and of use: receipts of incidents and jobs, the fleet report, and showback."""

"""Costs that the records show: receipts of incidents and jobs, the fleet report, showback and savings."""

"""Admission: the decisions of one scheduling cycle to admit, preempt and resize jobs, and to rent nodes for them."""

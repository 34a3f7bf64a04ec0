"""What one scheduling cycle decides: admit, preempt, resize."""

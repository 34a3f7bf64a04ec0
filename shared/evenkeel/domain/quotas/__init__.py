"""Teams, their quotas, budgets and usage."""

"""The ports on real technology. The only place where boto3 and HTTP appear."""

"""Adapters: the ports on AWS and Kubernetes. boto3 and HTTP are used only here."""

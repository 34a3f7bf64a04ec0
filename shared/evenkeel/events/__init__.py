"""Parsers of events from AWS, Kubernetes and a site. Each module reads one source and never calls the cloud."""

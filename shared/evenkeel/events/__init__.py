"""What AWS and Kubernetes say, as facts of the domain. Pure, one module per source, never a call."""

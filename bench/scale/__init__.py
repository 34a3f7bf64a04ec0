"""The cost of the service by the size of its fleet, in modelled time."""

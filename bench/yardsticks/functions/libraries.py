"""The libraries of the product's functions, without its code.

Only with fewer libraries or clients could the product avoid this cost.
"""

import os

CLIENTS = "CLIENTS"
"""Variable of the environment with the clients that the product's function creates. Without it, nothing is loaded."""


def load() -> None:
    """Import pydantic and Powertools, build one model, and create the clients."""
    if CLIENTS not in os.environ:
        return
    from aws_lambda_powertools import Logger
    from aws_lambda_powertools.metrics.base import SingleMetric
    from pydantic import BaseModel

    from evenkeel.adapters import aws

    class Model(BaseModel):
        name: str

    Model(name="")
    Logger(service="bench")
    SingleMetric(namespace="bench", service="")
    for service in os.environ[CLIENTS].split():
        aws.client(service)

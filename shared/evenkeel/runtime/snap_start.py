"""The state of a function in a SnapStart snapshot (the parameter `SnapStart`).

Lambda starts many environments from one snapshot of an initialised function. So nothing that must be unique, fresh or
connected may exist before the snapshot. The ports, their clients and the credentials are built by the first call, after
it. Ids and tokens come from the operating system's randomness, which differs in each environment.

Sources: https://docs.aws.amazon.com/lambda/latest/dg/snapstart-uniqueness.html
https://docs.aws.amazon.com/lambda/latest/dg/snapstart-runtime-hooks-python.html
"""

import importlib
import random
from collections.abc import Mapping

_HOOKS = "snapshot_restore_py"
"""Library of the managed runtime. The layer does not contain it."""
_MODULES = tuple(
    f"evenkeel.adapters.{name}"
    for name in ("cluster", "dynamo_ledger", "eks", "hyperpod", "messages", "stepfunctions", "system")
)
"""Adapters that the functions before a cordon import in their first call."""


def register_hooks(environment: Mapping[str, str]) -> bool:
    """Register the hooks of a function whose environments start from a snapshot. Return whether it is one."""
    if environment.get("AWS_LAMBDA_INITIALIZATION_TYPE") != "snap-start":
        return False
    hooks = importlib.import_module(_HOOKS)
    hooks.register_before_snapshot(import_adapters)
    hooks.register_after_restore(seed_again)
    return True


def import_adapters() -> None:
    """Import the adapters, so that the snapshot contains their code. It creates no client."""
    for name in _MODULES:
        importlib.import_module(name)


def seed_again() -> None:
    """Seed `random` again. The SDK draws the pauses between its retries from it: they would be equal everywhere."""
    random.seed()

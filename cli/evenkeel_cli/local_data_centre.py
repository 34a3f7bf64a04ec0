"""The optional local data centre: no other module of the command imports `evenkeel_local`."""

import importlib
from typing import Any

from evenkeel_client.errors import CommandFailed, Exit


def load_local_module(module: str) -> Any:
    """Import a module of the local data centre on first use; other commands do not need it.

    Raises:
        CommandFailed: the local data centre is not installed.
    """
    try:
        return importlib.import_module(f"evenkeel_local.{module}")
    except ImportError as error:
        raise CommandFailed(
            Exit.FAILED,
            f"The local data centre is not installed here: {error}.",
            code="NOT_INSTALLED",
            hint="In a clone of the project: make setup",
        ) from error

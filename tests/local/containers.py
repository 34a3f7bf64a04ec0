"""Processes of the deployed functions."""

from typing import Any

from evenkeel_local.deployment import STACK_NAME


def start_cold(functions: Any, function: str) -> None:
    """Make the next invocation start in a new process, without the caches of the old processes.

    Args:
        functions: A Lambda client that may configure functions.
        function: The function, without the name of the stack.
    """
    name = f"{STACK_NAME}-{function}"
    size = functions.get_function_configuration(FunctionName=name)["MemorySize"]
    functions.update_function_configuration(FunctionName=name, MemorySize=size)

"""Errors of a command: an exit code, what happened, and what to do next."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1
    """The tool or the service failed."""
    USAGE = 2
    UNSUCCESSFUL_END = 3
    """The command waited for a job or an operation, and it failed."""
    NOT_FOUND = 4
    CONFLICT = 5
    NOT_ALLOWED = 6
    TRY_AGAIN = 8
    """Throttled or unreachable."""
    DEGRADED = 20
    CRITICAL = 21
    TIMED_OUT = 124
    INTERRUPTED = 130


class CommandFailed(Exception):
    """Ends a command. Printed to standard error, without a stack trace."""

    def __init__(self, exit_code: Exit, text: str, *, code: str = "", hint: str = "", request_id: str = "") -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.text = text
        self.code = code
        self.hint = hint
        self.request_id = request_id


class ApiRequestFailed(CommandFailed):
    """The API answered with an HTTP error."""


def exit_for(status: int) -> Exit:
    """Return the exit code for an HTTP status."""
    match status:
        case 400 | 413 | 422:
            return Exit.USAGE
        case 401 | 403:
            return Exit.NOT_ALLOWED
        case 404 | 410:
            return Exit.NOT_FOUND
        case 409 | 412 | 428:
            return Exit.CONFLICT
        case 429 | 502 | 503 | 504:
            return Exit.TRY_AGAIN
        case _:
            return Exit.FAILED

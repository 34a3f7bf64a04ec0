"""The errors that ports may raise.

The tree:

    EvenkeelError
    ├── TransientError            the same call may soon succeed
    │   ├── Throttled             the other side asks for fewer calls
    │   ├── Unreachable           no answer, or a 5xx: whether the call took effect is unknown
    │   ├── PageNotSent           the page about an incident was not sent
    │   └── Conflict              a condition of a ledger write failed: reload and decide again
    │       └── StaleVersion      the resource has another version than the change expects
    └── PermanentError            the same call will not succeed
        ├── NotFound              the resource does not exist
        ├── NotAllowed            401, 403, AccessDenied
        ├── Unreadable            a stored row has a value that this release does not know
        │   └── NoPolicyInForce   this release can use no policy of the site
        └── Refused               the request itself is wrong
            ├── TooLarge          an object is larger than the limit for its kind
            ├── Invalid           names each wrong field
            └── KeyReused         an idempotency key was used again with different content
"""


class EvenkeelError(Exception):
    """Root of the errors that a port may raise. The message names the attempted action, the id, and the result."""


class TransientError(EvenkeelError):
    """A later repeat of the call may succeed."""


class Throttled(TransientError):
    """The other side asks for fewer calls."""


class Unreachable(TransientError):
    """No answer, or a 5xx: whether the call took effect is unknown."""


class PageNotSent(TransientError):
    """The page about an incident was not sent. Its workflow repeats it for a day."""


class Conflict(TransientError):
    """A condition of a ledger write failed: another writer was first. Reload and decide again."""

    def __init__(self, message: str, failed: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.failed = failed
        """Indexes of the writes whose condition failed."""


class StaleVersion(Conflict):
    """The resource has another version than the caller's change expects."""


class PermanentError(EvenkeelError):
    """A repeat of the call will not succeed."""


class NotFound(PermanentError):
    """The named resource does not exist."""


class NotAllowed(PermanentError):
    """The caller may not do this."""


class Unreadable(PermanentError):
    """A stored row has a value that only a newer release knows, or an answer of AWS lacks a field."""


class NoPolicyInForce(Unreadable):
    """This release can use neither the site's last policy nor the policy before it, so it decides nothing."""


class Refused(PermanentError):
    """The other side, or its adapter, rejects the request. A repeat fails, too."""


class TooLarge(Refused):
    """The object is larger than the limit for its kind."""


class Invalid(Refused):
    """The request is not valid. The error names each wrong field with its problem."""

    def __init__(self, message: str, faults: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults
        """Pairs of a field in camelCase and its problem."""


class KeyReused(Refused):
    """An idempotency key was used again with different content."""

"""Plain descriptions of failed connections. The texts of the libraries contain Python objects."""

import ssl

import urllib3
from botocore.exceptions import BotoCoreError, HTTPClientError, SSLError

_NAMED: tuple[tuple[type[Exception], str], ...] = (
    (urllib3.exceptions.NameResolutionError, "host name not found"),
    (urllib3.exceptions.SSLError, "TLS failed"),
    (ssl.SSLError, "TLS failed"),
    (urllib3.exceptions.ProxyError, "the proxy failed"),
)
_UNNAMED: tuple[tuple[type[Exception], str], ...] = (
    (urllib3.exceptions.TimeoutError, "timed out"),
    (TimeoutError, "timed out"),
    (urllib3.exceptions.ProtocolError, "the connection broke"),
)


def describe_connection_error(error: BaseException) -> str:
    """Return why a call got no answer, in plain words such as `connection refused` or `timed out`."""
    if isinstance(error, BotoCoreError) and type(error) not in (HTTPClientError, SSLError):
        return str(error).rstrip(".")  # this sentence of botocore is clear and names the endpoint
    causes = [error, *_causes(error)]
    for kind, words in _NAMED:
        if exception := next((cause for cause in causes if isinstance(cause, kind)), None):
            return _with_reason(words, exception)
    for cause in causes:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror[0].lower() + cause.strerror[1:]
    for kind, words in _UNNAMED:
        if any(isinstance(cause, kind) for cause in causes):
            return words
    return type(error).__name__


def _causes(error: BaseException) -> list[BaseException]:
    """Return the errors that this one wraps, outermost first."""
    wrapped_errors = [argument for argument in error.args if isinstance(argument, BaseException)]
    if isinstance(error, BotoCoreError) and isinstance(inner := error.kwargs.get("error"), BaseException):
        wrapped_errors.append(inner)
    if error.__cause__ is not None:
        wrapped_errors.append(error.__cause__)
    return [inner for cause in wrapped_errors for inner in (cause, *_causes(cause))]


def _with_reason(words: str, error: BaseException) -> str:
    reason = next((str(cause.reason) for cause in (error, *_causes(error)) if isinstance(cause, ssl.SSLError)), "")
    return f"{words} ({reason.replace('_', ' ').lower()})" if reason and reason != "None" else words

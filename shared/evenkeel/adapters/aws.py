"""Shared code of the AWS adapters: clients with explicit timeouts and retries, and the translation of error codes.

The SDK's parser copies each attribute of each item of DynamoDB through ten kinds of values. That takes more than half
of the processor time of reading rows, and every function reads rows. `_JsonParser` keeps items of texts and numbers as
the JSON has them, which is the SDK's result, too.
"""

import functools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ParamValidationError,
)
from botocore.exceptions import ConnectionError as NoConnection
from botocore.parsers import JSONParser, ResponseParserError, ResponseParserFactory

from evenkeel.adapters.connection_errors import describe_connection_error
from evenkeel.ports import EvenkeelError, NotAllowed, NotFound, Refused, Throttled, Unreachable, Unreadable

READS_AND_IDEMPOTENT_WRITES = Config(
    connect_timeout=2, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3}
)
"""For calls that the SDK may repeat: a repeat changes nothing, or has the same client token."""

ONE_ATTEMPT = Config(connect_timeout=5, read_timeout=60, retries={"total_max_attempts": 1})
"""For calls without a client token: the SDK must not repeat them after a timeout or a 5xx, as it does by default."""

_ERRORS_BY_CODE: Mapping[str, type[EvenkeelError]] = {
    "Throttling": Throttled,
    "ThrottlingException": Throttled,
    "Throttled": Throttled,
    "ThrottledException": Throttled,
    "RequestThrottled": Throttled,
    "RequestThrottledException": Throttled,
    "RequestLimitExceeded": Throttled,
    "TooManyRequestsException": Throttled,
    "ProvisionedThroughputExceededException": Throttled,
    "LimitExceededException": Throttled,
    "SlowDown": Throttled,
    "AccessDenied": NotAllowed,
    "AccessDeniedException": NotAllowed,
    "AuthorizationError": NotAllowed,
    "AuthorizationErrorException": NotAllowed,
    "InvalidSecurity": NotAllowed,
    "AuthFailure": NotAllowed,
    "IncompleteSignature": NotAllowed,
    "IncompleteSignatureException": NotAllowed,
    "InvalidAccessKeyId": NotAllowed,
    "InvalidSignatureException": NotAllowed,
    "MissingAuthenticationToken": NotAllowed,
    "MissingAuthenticationTokenException": NotAllowed,
    "NotAuthorized": NotAllowed,
    "OptInRequired": NotAllowed,
    "UnauthorizedOperation": NotAllowed,
    "UnrecognizedClientException": NotAllowed,
    "InvalidClientTokenId": NotAllowed,
    "SignatureDoesNotMatch": NotAllowed,
    "403": NotAllowed,
    "ResourceNotFound": NotFound,
    "ResourceNotFoundException": NotFound,
    "NotFound": NotFound,
    "NotFoundException": NotFound,
    "NoSuchBucket": NotFound,
    "NoSuchKey": NotFound,
    "404": NotFound,
    "ValidationError": Refused,
    "ValidationException": Refused,
    "InvalidParameterException": Refused,
    "InvalidParameterValueException": Refused,
    "InvalidParameterCombination": Refused,
    "InvalidParameterValue": Refused,
    "InvalidQueryParameter": Refused,
    "MissingParameter": Refused,
    "InvalidAction": Refused,
    "MissingAction": Refused,
    "UnknownOperationException": Refused,
    "MalformedHttpRequestException": Refused,
    "MalformedQueryString": Refused,
    "SerializationException": Refused,
    "ParseError": Refused,
    "RequestEntityTooLargeException": Refused,
    "BadRequestException": Refused,
    "InvalidRequestException": Refused,
    "InvalidRequest": Refused,
    "InvalidArgument": Refused,
    "AuthorizationHeaderMalformed": Refused,  # the bucket is in another region
    "PermanentRedirect": Refused,  # likewise
    "301": Refused,  # likewise, as the answer to a HEAD request
    "InvalidObjectState": Refused,  # the object is in an archive class of S3, from which nothing can be read
    "InvalidNextToken": Refused,
    "ClientException": Refused,
    "RequestAbortedException": Unreachable,
    "RequestExpired": Unreachable,  # it arrived too late; a repeat is signed again
    "RequestTimeTooSkewed": Unreachable,  # likewise
    "ExpiredToken": Unreachable,  # a repeat uses newer credentials
    "ExpiredTokenException": Unreachable,
    "400": Unreachable,  # the answer to a HEAD request has no code; S3 sends this status for an expired token, too
    "RequestTimeout": Unreachable,
    "RequestTimeoutException": Unreachable,
    "InternalError": Unreachable,
    "InternalException": Unreachable,
    "InternalFailure": Unreachable,
    "InternalServerError": Unreachable,
    "ServiceUnavailable": Unreachable,
    "ServiceUnavailableException": Unreachable,
    "ServiceException": Unreachable,
}
"""Meanings of codes that several services send. `tests/contract/test_aws_calls.py` tries each code of the models.

Codes that every service may send are in no model:
https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/CommonErrors.html
"""
_KMS_PREFIX = "kms"
"""First letters of the codes with which a service reports that a key could not be used, in any case."""
_NETWORK_ERRORS = (NoConnection, HTTPClientError, IncompleteReadError)


_PLAIN_VALUES = frozenset("SN")
"""Types of DynamoDB's values whose JSON needs no conversion: text and number."""

_CREATION = threading.Lock()
"""Functions create clients in threads, and a session creates one at a time.
https://boto3.amazonaws.com/v1/documentation/api/latest/guide/session.html#multithreading-or-multiprocessing-with-sessions
"""


class _JsonParser(JSONParser):
    """The SDK's parser of JSON, which keeps items of DynamoDB without another kind of value as they are."""

    def _handle_map(self, shape: Any, value: Any) -> Any:
        if shape.value.name == "AttributeValue" and all(
            _PLAIN_VALUES.issuperset(attribute) for attribute in value.values()
        ):
            return value
        return super()._handle_map(shape, value)  # type: ignore[misc]  # the stubs lack it


class _ParserFactory(ResponseParserFactory):
    """Creates the SDK's parsers, with `_JsonParser` for JSON."""

    def create_parser(self, protocol_name: str) -> Any:
        return _JsonParser() if protocol_name == "json" else super().create_parser(protocol_name)


@functools.cache
def session() -> Any:
    """Return the SDK session of this container.

    It is botocore's. boto3 adds resources and file transfers, which take a tenth of a cold start and are not used here.
    """
    new_session = botocore.session.get_session()
    new_session.register_component("response_parser_factory", _ParserFactory())
    return new_session


def client(service: str, config: Config = READS_AND_IDEMPOTENT_WRITES) -> Any:
    """Create a client. The SDK reads region, credentials and endpoints from the environment."""
    with _CREATION:
        return session().create_client(service, config=config)


def code_of(error: ClientError) -> str:
    """Return the error code of the service's answer."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    """Return the HTTP status of the answer."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@contextmanager
def translate_errors(attempt: str, also: Mapping[str, type[EvenkeelError]] | None = None) -> Iterator[None]:
    """Translate the errors of a call into the errors of the ports, by error code alone.

    Args:
        attempt: The attempted operation and its id. The message begins with it.
        also: Errors for codes that have a special meaning for this call.

    Raises:
        EvenkeelError: The error for the code. An unknown code with a status below 500 is raised unchanged.
    """
    try:
        yield
    except ClientError as error:
        code = code_of(error)
        meaning = (also or {}).get(code) or _ERRORS_BY_CODE.get(code) or _meaning_of_key_error(code)
        if meaning is None and status_of(error) >= 500:
            meaning = Unreachable
        if meaning is None:
            raise
        raise meaning(f"{attempt}: {code}: {error.response['Error'].get('Message', '')}") from error
    except _NETWORK_ERRORS as error:
        raise Unreachable(f"{attempt}: no answer: {describe_connection_error(error)}") from error
    except ParamValidationError as error:
        raise Refused(f"{attempt}: {error}") from error
    except (BotoCoreError, ResponseParserError) as error:  # the call may have had its effect
        raise Unreachable(f"{attempt}: no usable answer: {type(error).__name__}: {error}") from error


@contextmanager
def translate_malformed_answer(attempt: str) -> Iterator[None]:
    """Translate an answer that lacks a required field, or has one of another type.

    Raises:
        Unreadable: The answer is malformed.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"{attempt}: malformed answer: {type(error).__name__}: {error}") from error


def _meaning_of_key_error(code: str) -> type[EvenkeelError] | None:
    """Return the meaning of a code such as `KMSAccessDenied`, `KmsThrottled` or `KMS.DisabledException`."""
    lower = code.lower()
    if not lower.startswith(_KMS_PREFIX):
        return None
    return Throttled if "throttl" in lower else NotAllowed


def escape_surrogates(text: str) -> str:
    """Return a text that UTF-8 can encode. A lone surrogate, which JSON may contain, becomes its escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()

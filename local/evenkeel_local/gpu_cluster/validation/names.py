"""The formats of names, labels, keys and ports. Each function returns the errors of a text.

Source: `k8s.io/apimachinery/pkg/util/validation`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.validation.causes import Cause, forbidden, invalid, required

LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
SERVICE = "[a-z]([-a-z0-9]*[a-z0-9])?"
QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
CONFIG_KEY = "[-._a-zA-Z0-9]+"
PERCENT = "[0-9]+%"
PORTS = range(1, 65536)

_ENDS = "start and end with an alphanumeric character"
_RULES = {
    LABEL: (
        f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must {_ENDS}",
        ("my-name", "123-abc"),
    ),
    SUBDOMAIN: (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
        + _ENDS,
        ("example.com",),
    ),
    SERVICE: (
        (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
            "character, and end with an alphanumeric character"
        ),
        ("my-name", "abc-123"),
    ),
    QUALIFIED: (
        f"must consist of alphanumeric characters, '-', '_' or '.', and must {_ENDS}",
        ("MyName", "my.name", "123-abc"),
    ),
    f"({QUALIFIED})?": (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
        + _ENDS,
        ("MyValue", "my_value", "12345"),
    ),
    CONFIG_KEY: (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
        ("key.name", "KEY_NAME", "key-name"),
    ),
    PERCENT: ("a valid percent string must be a numeric string followed by an ending '%'", ("1%", "93%")),
}
_COMPILED = {pattern: re.compile(rf"{pattern}\Z") for pattern in _RULES}


def _pattern_errors(pattern: str, text: str) -> list[str]:
    if _COMPILED[pattern].match(text):
        return []
    rule, examples = _RULES[pattern]
    shown = " or ".join(f"'{example}', " for example in examples)
    return [f"{rule} (e.g. {shown}regex used for validation is '{pattern}')"]


def _length_errors(text: str, max_length: int) -> list[str]:
    return [f"must be no more than {max_length} bytes"] if len(text.encode()) > max_length else []


def label_errors(text: str) -> list[str]:
    """Judge a DNS-1123 label."""
    errors = _length_errors(text, 63)
    if _pattern_errors(LABEL, text):
        errors += ["must not contain dots"] if not _pattern_errors(SUBDOMAIN, text) else _pattern_errors(LABEL, text)
    return errors


def subdomain_errors(text: str) -> list[str]:
    """Judge a DNS-1123 subdomain."""
    return _length_errors(text, 253) + _pattern_errors(SUBDOMAIN, text)


def service_name_errors(text: str) -> list[str]:
    """Judge a DNS-1035 label."""
    return _length_errors(text, 63) + _pattern_errors(SERVICE, text)


def path_segment_errors(text: str) -> list[str]:
    """Judge a name that is a path segment."""
    if text in (".", ".."):
        return [f"may not be '{text}'"]
    return [f"may not contain '{mark}'" for mark in ("/", "%") if mark in text]


def qualified_name_errors(text: str) -> list[str]:
    """Judge the key of a label: a name with an optional domain before it."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        rule = _pattern_errors(QUALIFIED, "/")[0]
        return [f"a qualified name {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
    messages_found = []
    if slash and not prefix:
        messages_found.append("prefix part must be non-empty")
    elif slash:
        messages_found += [f"prefix part {messages}" for messages in subdomain_errors(prefix)]
    if not name:
        messages_found.append("name part must be non-empty")
    messages_found += [
        f"name part {messages}" for messages in _length_errors(name, 63) + _pattern_errors(QUALIFIED, name)
    ]
    return messages_found


def label_value_errors(text: str) -> list[str]:
    """Judge the value of a label."""
    return _length_errors(text, 63) + _pattern_errors(f"({QUALIFIED})?", text)


def config_key_errors(text: str) -> list[str]:
    """Judge a key of a ConfigMap or Secret."""
    errors = _length_errors(text, 253) + _pattern_errors(CONFIG_KEY, text)
    if text in (".", ".."):
        errors.append(f"must not be '{text}'")
    elif text.startswith(".."):
        errors.append("must not start with '..'")
    return errors


def percent_errors(text: str) -> list[str]:
    """Judge a percentage."""
    return _pattern_errors(PERCENT, text)


def environment_name_errors(text: str) -> list[str]:
    """Judge the name of an environment variable, by the relaxed rule of Kubernetes 1.32."""
    if all(" " <= character <= "~" and character != "=" for character in text):
        return []
    return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]


def port_number_errors(value: Any) -> list[str]:
    """Judge a port."""
    return [] if value in PORTS else ["must be between 1 and 65535, inclusive"]


def port_name_errors(text: str) -> list[str]:
    """Judge the name of a port."""
    errors = _length_errors(text, 15)
    if not re.match(r"[-a-z0-9]+\Z", text):
        errors.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", text):
        errors.append("must contain at least one letter (a-z)")
    if "--" in text:
        errors.append("must not contain consecutive hyphens")
    if text.startswith("-") or text.endswith("-"):
        errors.append("must not begin or end with a hyphen")
    return errors


def causes(field: str, value: Any, messages: Iterable[str]) -> Iterator[Cause]:
    """Yield one cause for each error of a value."""
    for message in messages:
        yield invalid(field, value, message)


def check_required(field: str, value: Any, judge: Callable[[Any], list[str]], detail: str = "") -> Iterator[Cause]:
    """Yield the problems of a value that must be given."""
    if value:
        yield from causes(field, value, judge(value))
    else:
        yield required(field, detail)


def check_labels(labels: Mapping[str, str] | None, field: str) -> Iterator[Cause]:
    """Yield the problems of labels, or with a selector of equal labels."""
    for key, value in (labels or {}).items():
        yield from causes(field, key, qualified_name_errors(key))
        yield from causes(field, value, label_value_errors(value))


def check_selector(selector: Obj | None, field: str) -> Iterator[Cause]:
    """Yield the problems of a LabelSelector."""
    yield from check_labels((selector or {}).get("matchLabels"), f"{field}.matchLabels")
    for number, term in enumerate((selector or {}).get("matchExpressions") or ()):
        at = f"{field}.matchExpressions[{number}]"
        operator, values = term.get("operator", ""), term.get("values") or []
        if operator in ("In", "NotIn"):
            if not values:
                yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator not in ("Exists", "DoesNotExist"):
            yield invalid(f"{at}.operator", operator, "not a valid selector operator")
        elif values:
            yield forbidden(f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        yield from causes(f"{at}.key", term.get("key", ""), qualified_name_errors(term.get("key", "")))
        for index, value in enumerate(values):
            yield from causes(f"{at}.values[{index}]", value, label_value_errors(value))

"""Read YAML files as Kubernetes does. A key that occurs twice in one object is refused."""

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml

from evenkeel_client.errors import CommandFailed, Exit


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml parses seven times as fast
    """Loads YAML, keeps instants as text, and refuses an object with a repeated key."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Check the keys before merge keys (`<<`) add keys of another object. A node may be flattened several times."""
        if not getattr(node, "has_unique_keys", False):
            keys: set[tuple[str, str]] = set()
            for key_node, _ in node.value:
                if isinstance(key_node, yaml.ScalarNode):
                    key = (key_node.tag, key_node.value)
                    if key in keys:
                        line = key_node.start_mark.line + 1
                        raise yaml.YAMLError(f"line {line} repeats the key {key_node.value!r}; write each key once")
                    keys.add(key)
            node.has_unique_keys = True  # type: ignore[attr-defined]  # yaml has no field for notes
        super().flatten_mapping(node)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_all(file: Path) -> list[Any]:
    """Return a file's documents as they are, nulls and lists included; `-` is standard input. JSON is YAML, too.

    Raises:
        CommandFailed: it cannot be read, or is not valid YAML or JSON.
    """
    name = name_of(file)
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        return _load_json(text) or _load_yaml(text)
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"{name}: {error.strerror}", code="NO_FILE") from error
    except UnicodeDecodeError as error:
        raise CommandFailed(Exit.USAGE, f"{name} is not text in UTF-8.", code="NOT_YAML") from error
    # PyYAML raises AttributeError or KeyError if a value does not fit its tag, as in `!!bool perhaps`.
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, KeyError) as error:
        message = f"{name} is not valid YAML or JSON: {_problem(error)}"
        raise CommandFailed(Exit.USAGE, message, code="NOT_YAML") from error


def name_of(file: Path) -> str:
    """Return the name of a file in a message; `-` is standard input."""
    return "Standard input" if str(file) == "-" else str(file)


def _problem(error: Exception) -> str:
    """Return why a text is not YAML. PyYAML's own message names the text `<unicode string>`, twice."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def _load_json(text: str) -> list[Any]:
    """Return the one document of a JSON text, read ten times as fast as YAML. Empty if it must be read as YAML."""
    if not text.startswith(("{", "[")):
        return []
    try:
        return [
            json.loads(text, parse_float=_float_as_in_yaml, parse_constant=_refuse, object_pairs_hook=_unique_fields)
        ]
    except ValueError:
        return []


def _load_yaml(text: str) -> list[Any]:
    documents = list(yaml.load_all(text, Loader=_Loader))
    if "&" in text:  # without an anchor there is no alias
        _check_aliases(documents, {})
    return documents


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key occurs twice")
    return fields


_OPEN = -1
"""Size of a value whose parts are being counted. If it is reached again, the value contains itself."""
_MAX_VALUES = 1_000_000
"""Values of a file with aliases. A few lines can expand to billions of values."""


def _check_aliases(value: Any, sizes: dict[int, int]) -> int:
    """Return the number of values that a value has after aliases are replaced.

    Raises:
        ValueError: a value contains itself, or the number is too large.
    """
    if not isinstance(value, dict | list):
        return 1
    size = sizes.get(id(value))
    if size == _OPEN:
        raise ValueError("an alias refers to the object or list that contains it")
    if size is None:
        sizes[id(value)] = _OPEN
        parts = value.values() if isinstance(value, dict) else value
        size = sizes[id(value)] = 1 + sum(_check_aliases(part, sizes) for part in parts)
    if size > _MAX_VALUES:
        raise ValueError(f"its aliases expand to more than {_MAX_VALUES} values")
    return size


def _float_as_in_yaml(text: str) -> float:
    return _refuse(text) if "e" in text or "E" in text else float(text)


def _refuse(text: str) -> NoReturn:
    """Refuse a number that YAML reads as a text, such as `1e3` and `NaN`."""
    raise ValueError(text)

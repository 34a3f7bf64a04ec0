"""Arguments of the commands that take a job: a job file, the command after `--`, and an option for each declared field.

`make generate` writes job_options.json from the job specification, so that these commands start without pydantic.
"""

import functools
import inspect
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]


class JobOption(NamedTuple):
    """An option that sets one field of a request."""

    option: str
    path: tuple[str, ...]
    """Names in a request, from the outermost object to the field."""
    kind: str
    help: str

    @property
    def name(self) -> str:
        """Name of the parameter."""
        return "_".join(self.path)

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter that typer turns into this option."""
        kinds: dict[str, tuple[Any, str | None]] = {
            "integer": (int, None),
            "text": (str, None),
            "instant": (str, "INSTANT"),
            "assignments": (list[str], "NAME=VALUE"),
            "texts": (list[str], None),
            "volumes": (list[str], "CLAIM[/FOLDER]:PATH[:rw]"),
            "folders": (list[str], "PATH:GIB"),
        }
        kind, metavar = kinds[self.kind]
        option = typer.Option(self.option, metavar=metavar, help=self.help)
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
        )


OPTIONS = tuple(
    JobOption(**{**option, "path": tuple(option["path"])})
    for option in json.loads(Path(__file__).with_name("job_options.json").read_text(encoding="utf-8"))
)
_URI, _CLAIM = ("checkpoint", "uri"), ("checkpoint", "claim")
_WORDS = inspect.Parameter(
    "words",
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    default=None,
    annotation=Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB.yaml|COMMAND",
            help="Job file in YAML or JSON (- reads standard input), or the command of the job after --.",
        ),
    ],
)


def takes_a_job(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments of a job.

    It receives `body`, the body of the request. If it takes `arguments`, these are the same arguments as typed.
    """
    parameters = inspect.signature(command).parameters

    @functools.wraps(command)
    def wrapped(words: Sequence[str] | None = None, **options: Any) -> None:
        values_by_option = {option: options.pop(option.name) for option in OPTIONS}
        if "arguments" in parameters:
            options["arguments"] = _arguments_as_typed(words or (), values_by_option)
        command(body=request_body(words or (), values_by_option), **options)

    own_parameters = [parameter for parameter in parameters.values() if parameter.name not in ("body", "arguments")]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own_parameters]
    signature = inspect.Signature([_WORDS, *(option.parameter for option in OPTIONS), *keywords])
    setattr(wrapped, "__signature__", signature)  # noqa: B010 - typer reads it; mypy knows no such attribute
    return wrapped


def explain_missing_fields(failure: CommandFailed, body: Json) -> CommandFailed:
    """Add every missing field to the refusal of a job. The API names only the first kind of error."""
    if failure.code != "VALIDATION_FAILED":
        return failure
    missing_fields = [
        field for field in ("image", "command") if not body.get(field) and f"{field}: " not in failure.text
    ]
    if missing_fields and not body.get("name"):
        failure.text += "".join(
            f"\n  {field}: missing; required unless a job type of the site fills it" for field in missing_fields
        )
        if command := body.get("command"):
            failure.text += (
                f"\n  {command[0]} was read as the command of the job. Job files end in .yaml, .yml or .json."
            )
    failure.hint = (
        "evenkeel jobs init writes a whole job file." if missing_fields else "Correct these fields, then submit again."
    )
    return failure


def _arguments_as_typed(words: Sequence[str], values_by_option: Mapping[JobOption, Any]) -> str:
    """Return the arguments of a job as a person types them."""
    options = [
        text
        for option, typed_value in values_by_option.items()
        if typed_value is not None
        for value in (typed_value if isinstance(typed_value, list) else [typed_value])
        for text in (option.option, str(value))
    ]
    source, command = (words[:1], words[1:]) if words and _is_job_file(words[0]) else ((), words)
    return shlex.join([*source, *options, *(["--", *command] if command else [])])


def _is_job_file(word: str) -> bool:
    return word == "-" or word.endswith((".json", ".yaml", ".yml"))


def request_body(words: Sequence[str], values_by_option: Mapping[JobOption, Any]) -> Json:
    """Return the body of a request: the job file, overridden by the options.

    Raises:
        CommandFailed: the file cannot be read, or an option does not fit it.
    """
    body = _job_file(words)
    for option, value in values_by_option.items():
        # An empty URI comes from an unset variable in a script, so it does not override the file's URI.
        if value in (None, []) or (option.path == _URI and not value):
            continue
        group, *inner = option.path
        if option.kind == "assignments":
            body[group] = _object_field(body, group) | dict(map(_parse_assignment, value))
        elif option.kind in _ITEMS and inner:
            items = [*_list_field(_object_field(body, group), inner[0]), *(_ITEMS[option.kind](text) for text in value)]
            body[group] = _object_field(body, group) | {inner[0]: items}
        elif option.kind in _ITEMS:
            body[group] = [*_list_field(body, group), *(_ITEMS[option.kind](text) for text in value)]
        elif inner:
            body[group] = _object_field(body, group) | {inner[0]: value}
        else:
            body[group] = value
    _set_derived_fields(body, {option.path: value for option, value in values_by_option.items() if value is not None})
    return body


def _set_derived_fields(body: Json, option_values: Mapping[tuple[str, ...], Any]) -> None:
    """Set the fields that follow from the given options."""
    if any(group == "elastic" for group, *_ in option_values):
        nodes = body.get("nodes", 1)
        body["elastic"] = {"minNodes": nodes, "maxNodes": nodes} | body["elastic"]
    uri = option_values.get(_URI)
    if uri and not uri.startswith("file:") and not option_values.get(_CLAIM):
        # A claim holds folders only. This URI is not a folder, so the claim of the job file does not apply.
        body["checkpoint"]["claim"] = ""


def _job_file(words: Sequence[str]) -> Json:
    """Read the positional arguments: a job file, the command, or both."""
    body: Json = {}
    if words and not words[0].strip():
        # An unset shell variable.
        raise CommandFailed(Exit.USAGE, "The job file argument is empty.", code="USAGE")
    if words and _is_job_file(words[0]):
        source, *words = words
        from evenkeel_cli.yaml_files import load_all, name_of

        documents = load_all(Path(source))
        if len(documents) != 1 or not isinstance(documents[0], dict):
            message = f"{name_of(Path(source))} must hold one object: a job."
            raise CommandFailed(
                Exit.USAGE, message, code="NOT_A_JOB", hint="evenkeel jobs init writes a whole job file."
            )
        body = documents[0]
    if words:
        body["command"], body["args"] = list(words), []
    return body


def _object_field(body: Json, field: str) -> Json:
    """Return the object in a field of a job file. Options override its fields."""
    document = body.get(field)
    if document is not None and not isinstance(document, dict):
        raise CommandFailed(
            Exit.USAGE, f"{field} must be a JSON object in the job's file, not {json.dumps(document)}.", code="NOT_JSON"
        )
    return document or {}


def _list_field(body: Json, field: str) -> list[Any]:
    """Return the list in a field of a job file, to which options add items."""
    items = body.get(field)
    if items is not None and not isinstance(items, list):
        raise CommandFailed(
            Exit.USAGE, f"{field} must be a JSON list in the job's file, not {json.dumps(items)}.", code="NOT_JSON"
        )
    return items or []


def _parse_volume(text: str) -> Json:
    """Read a mounted claim: `data:/data`, `data/imagenet:/data:rw`. It is read-only without `:rw`."""
    source, _, target = text.partition(":")
    path, colon, mode = target.partition(":")
    claim, _, folder = source.partition("/")
    if not claim or not path or (colon and mode not in ("ro", "rw")):
        raise CommandFailed(Exit.USAGE, f"--volume {text}: write CLAIM[/FOLDER]:PATH[:rw].", code="USAGE")
    return {"claim": claim, "mountPath": path, "readOnly": mode != "rw"} | ({"subPath": folder} if folder else {})


def _parse_scratch(text: str) -> Json:
    """Read a scratch folder: `/scratch:200`."""
    path, _, size = text.rpartition(":")
    if not path or not (size.isascii() and size.isdigit()):
        raise CommandFailed(Exit.USAGE, f"--scratch {text}: write PATH:GIB.", code="USAGE")
    return {"mountPath": path, "sizeGib": int(size)}


_ITEMS: dict[str, Callable[[str], Any]] = {"texts": str, "volumes": _parse_volume, "folders": _parse_scratch}
"""How the options for lists are read, by kind."""


def _parse_assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandFailed(Exit.USAGE, f"--env {text}: write NAME=VALUE.", code="USAGE")
    return name, value

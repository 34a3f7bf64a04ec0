"""The part of the AWS CLI that the runbooks use, on botocore: `python aws_command.py sqs receive-message --queue-url
…`.

The project does not depend on the real AWS CLI. Options are checked against the service's own model, so a misspelled
option fails as in the real CLI.
"""

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jmespath  # type: ignore[import-untyped]  # it has no types
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

Json = dict[str, Any]
_SPANS = {"m": 60, "h": 3600}


def main(words: Sequence[str]) -> int:
    """Run one command. Return 0, or 254 if the service refuses the call, as the AWS CLI does."""
    try:
        return _run(words[0], words[1], list(words[2:]))
    except (BotoCoreError, ClientError) as error:
        print(error, file=sys.stderr)
        return 254


def _run(service: str, verb: str, words: list[str]) -> int:
    if (service, verb) == ("s3", "cp"):
        bucket, key = words[0].removeprefix("s3://").split("/", 1)
        assert words[1] == "-", "copy to `-`: this stand-in for the AWS CLI writes to standard output only"
        sys.stdout.write(_client("s3").get_object(Bucket=bucket, Key=key)["Body"].read().decode())
        return 0
    if (service, verb) == ("logs", "tail"):
        return _tail(words)
    client = _client(service)
    operation = next(name for name in client.meta.service_model.operation_names if xform_name(name, "-") == verb)
    shape = client.meta.service_model.operation_model(operation).input_shape
    options, plain = _options(words)
    query, output = options.pop("query", [None])[0], options.pop("output", ["json"])[0]
    most = options.pop("max-items", None)
    members = {xform_name(name, "-"): (name, member) for name, member in shape.members.items()}
    document = {members[name][0]: _value(members[name][1], values) for name, values in options.items()}
    answer = getattr(client, xform_name(operation))(**document)
    answer.pop("ResponseMetadata", None)
    if plain:  # of `lambda invoke`: the file for the function's answer
        body = answer.pop("Payload").read()
        Path(plain[0]).write_bytes(body)
        assert "FunctionError" not in answer, body
    if most:
        answer = {key: value[: int(most[0])] if isinstance(value, list) else value for key, value in answer.items()}
    selected = jmespath.search(query, answer) if query else answer
    if output == "text" and not isinstance(selected, dict):
        print("\t".join(map(str, selected)) if isinstance(selected, list) else selected)
    else:
        print(json.dumps(selected, default=str))
    return 0


def _tail(words: list[str]) -> int:
    options, (group,) = _options(words)
    count, unit = re.fullmatch(r"(\d+)([mh])", options.pop("since", ["10m"])[0]).groups()  # type: ignore[union-attr]
    pattern = options.pop("filter-pattern", None)
    assert not options, options
    since = int((time.time() - int(count) * _SPANS[unit]) * 1000)
    more = {"filterPattern": pattern[0]} if pattern else {}
    for event in _client("logs").filter_log_events(logGroupName=group, startTime=since, **more)["events"]:
        print(event["message"].rstrip())
    return 0


def _options(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    options: dict[str, list[str]] = {}
    plain: list[str] = []
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            options[name] = []
        elif name and (not options[name] or name.endswith("-names")):
            options[name].append(word)
        else:
            plain.append(word)
    return options, plain


def _value(shape: Any, values: list[str]) -> Any:
    match shape.type_name:
        case "integer" | "long":
            return int(values[0])
        case "list":
            return json.loads(values[0]) if values[0].startswith("[") else values
        case "structure" | "map":
            return json.loads(values[0])
        case _:
            return values[0]


def _client(service: str) -> Any:
    return Session().create_client(service)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Prove checkpoints from a shell: `python -m evenkeel.training prove <uri>`, `… resume-point <uri> --attempt <n>`.

| exit code | |
|---|---|
| 0 | `prove`: a checkpoint holds. `resume-point`: pinned (perhaps to the beginning) |
| 1 | `prove`: none holds |
| 2 | the arguments or the store could not be used |
| 65 | `resume-point`: finished checkpoints are there and none holds; nothing was pinned |
| 75 | a later attempt has taken over |
"""

import argparse
import hashlib
import json
import sys
from datetime import datetime

from evenkeel.training.layout import JsonObject, UnreadableError, read_instant
from evenkeel.training.resume import Distrust, Fenced, ResumeChoice, Unproved, choose, pin
from evenkeel.training.run import EXIT_FENCED, EXIT_UNPROVED
from evenkeel.training.storage import Storage, open_storage


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    asked = _parser().parse_args(arguments)
    try:
        storage = open_storage(asked.uri)
        return _prove(storage, asked) if asked.command == "prove" else _pin(storage, asked)
    except Fenced as fenced:
        sys.stderr.write(f"{fenced}\n")
        return EXIT_FENCED
    except Unproved as unproved:
        sys.stderr.write(f"{unproved}\n")
        return EXIT_UNPROVED
    except UnreadableError as error:
        sys.stderr.write(f"the fence under {asked.uri} cannot be read: {error}\n")
        return 2
    except (ValueError, OSError, ModuleNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _prove(storage: Storage, asked: argparse.Namespace) -> int:
    fence = storage.read_fence().fence
    if asked.attempt is not None:
        attempt = asked.attempt
    else:
        newest = max((checkpoint.attempt for checkpoint in storage.checkpoints()), default=0)
        attempt = max(newest, fence.attempt if fence else 0) + 1
    choice = choose(storage, attempt, fence, _distrust(asked), accepts_convention=asked.accept_convention)
    _report(storage, choice, asked)
    return 0 if choice.resume_from else 1


def _pin(storage: Storage, asked: argparse.Namespace) -> int:
    choice = pin(
        storage,
        asked.attempt,
        _distrust(asked),
        accepts_convention=asked.accept_convention,
        may_start_over=asked.start_over,
    )
    if asked.json:
        _report(storage, choice, asked)
    else:
        # Only the key goes to standard output: a start script puts it into EVENKEEL_RESUME_FROM.
        sys.stdout.write(f"{choice.resume_from.manifest if choice.resume_from else ''}\n")
        sys.stderr.write(f"{choice.reason}\n")
    return 0


def _report(storage: Storage, choice: ResumeChoice, asked: argparse.Namespace) -> None:
    if asked.json:
        document: JsonObject = {**choice.to_json(), "digest": None}
        if choice.resume_from:
            content = storage.get(choice.resume_from.manifest) or b""
            document["digest"] = hashlib.sha256(content).hexdigest()
        sys.stdout.write(f"{json.dumps(document)}\n")
        return
    sys.stdout.write(f"{choice.reason}\n")
    for out in choice.rejected:
        sys.stdout.write(f"  step {out['step']} of attempt {out['attempt']}  {out['code']}: {out['detail']}\n")


def _parser() -> argparse.ArgumentParser:
    about = "Verify checkpoints, and pin the resume point of an attempt."
    parser = argparse.ArgumentParser(prog="python -m evenkeel.training", description=about)
    commands = parser.add_subparsers(dest="command", required=True)
    prove = commands.add_parser(
        "prove", help="print the newest usable checkpoint, and why newer checkpoints are not usable; change nothing"
    )
    resume_point = commands.add_parser("resume-point", help="raise the fence to an attempt and pin its resume point")
    for command in (prove, resume_point):
        command.add_argument("uri", help="s3://bucket/prefix, file:///folder or a path")
        command.add_argument("--json", action="store_true", help="print one JSON object")
        command.add_argument(
            "--distrust-after",
            type=_instant,
            metavar="INSTANT",
            help="distrust checkpoints whose write began after this time",
        )
        command.add_argument(
            "--accept-convention",
            action="store_true",
            help="accept checkpoints that are complete by the DCP convention",
        )
    prove.add_argument("--attempt", type=int, help="attempt that resumes; if omitted, the next attempt")
    resume_point.add_argument("--attempt", type=int, required=True)
    resume_point.add_argument("--start-over", action="store_true", help="start from step 0 if no checkpoint is usable")
    return parser


def _distrust(asked: argparse.Namespace) -> Distrust | None:
    return Distrust(asked.distrust_after) if asked.distrust_after else None


def _instant(text: str) -> datetime:
    try:
        return read_instant(text)
    except UnreadableError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())

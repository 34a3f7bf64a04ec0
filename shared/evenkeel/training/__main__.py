"""Prove checkpoints from a shell: `python -m evenkeel.training prove <uri>`, `… resume-point <uri> --attempt <n>`.

Exit codes:

    | exit code | |
    |---|---|
    | 0 | `prove`: a checkpoint is valid. `resume-point`: the resume point is pinned (it may be step 0) |
    | 1 | `prove`: no checkpoint is valid |
    | 2 | the arguments are not valid, or the store cannot be read |
    | 65 | `resume-point`: finished checkpoints exist and none is valid; nothing was pinned |
    | 75 | a later attempt has taken over |
"""

import argparse
import hashlib
import json
import sys
from datetime import datetime

from evenkeel.training.layout import JsonObject, UnreadableError, read_instant
from evenkeel.training.resume import Distrust, Fenced, ResumeChoice, Unproven, choose, pin
from evenkeel.training.run import EXIT_FENCED, EXIT_UNPROVEN
from evenkeel.training.storage import Storage, open_storage


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        storage = open_storage(options.uri)
        return _prove(storage, options) if options.command == "prove" else _pin(storage, options)
    except Fenced as fenced:
        sys.stderr.write(f"{fenced}\n")
        return EXIT_FENCED
    except Unproven as unproven:
        sys.stderr.write(f"{unproven}\n")
        return EXIT_UNPROVEN
    except UnreadableError as error:
        sys.stderr.write(f"the fence under {options.uri} cannot be read: {error}\n")
        return 2
    except (ValueError, OSError, ModuleNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _prove(storage: Storage, options: argparse.Namespace) -> int:
    fence = storage.read_fence().fence
    if options.attempt is not None:
        attempt = options.attempt
    else:
        newest = max((checkpoint.attempt for checkpoint in storage.checkpoints()), default=0)
        attempt = max(newest, fence.attempt if fence else 0) + 1
    choice = choose(storage, attempt, fence, _distrust(options), accepts_convention=options.accept_convention)
    _report(storage, choice, options)
    return 0 if choice.resume_from else 1


def _pin(storage: Storage, options: argparse.Namespace) -> int:
    choice = pin(
        storage,
        options.attempt,
        _distrust(options),
        accepts_convention=options.accept_convention,
        may_start_over=options.start_over,
    )
    if options.json:
        _report(storage, choice, options)
    else:
        # Standard output has only the key, so that a start script can set EVENKEEL_RESUME_FROM to it.
        sys.stdout.write(f"{choice.resume_from.manifest if choice.resume_from else ''}\n")
        sys.stderr.write(f"{choice.reason}\n")
    return 0


def _report(storage: Storage, choice: ResumeChoice, options: argparse.Namespace) -> None:
    if options.json:
        document: JsonObject = {**choice.to_json(), "digest": None}
        if choice.resume_from:
            content = storage.get(choice.resume_from.manifest) or b""
            document["digest"] = hashlib.sha256(content).hexdigest()
        sys.stdout.write(f"{json.dumps(document)}\n")
        return
    sys.stdout.write(f"{choice.reason}\n")
    for rejection in choice.rejected:
        sys.stdout.write(
            f"  step {rejection['step']} of attempt {rejection['attempt']}  "
            f"{rejection['code']}: {rejection['detail']}\n"
        )


def _parser() -> argparse.ArgumentParser:
    about = "Verify checkpoints, and pin the resume point of an attempt."
    parser = argparse.ArgumentParser(prog="python -m evenkeel.training", description=about)
    commands = parser.add_subparsers(dest="command", required=True)
    prove = commands.add_parser(
        "prove", help="print the newest valid checkpoint, and why newer checkpoints are not valid; change nothing"
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
    resume_point.add_argument("--start-over", action="store_true", help="start from step 0 if no checkpoint is valid")
    return parser


def _distrust(options: argparse.Namespace) -> Distrust | None:
    return Distrust(options.distrust_after) if options.distrust_after else None


def _instant(text: str) -> datetime:
    try:
        return read_instant(text)
    except UnreadableError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())

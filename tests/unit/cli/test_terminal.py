"""Text from jobs, detectors and providers cannot control the terminal, whichever command prints it."""

import ast
import io
import json
import sys
from pathlib import Path

import pytest

import evenkeel_cli
from evenkeel.ports import LaunchSpec
from evenkeel_cli.main import main
from evenkeel_cli.render import Printer, escape_control_characters
from tests.unit.api.gateway import ApiResponse
from tests.unit.api.seeds import a_job, an_attempt, store
from tests.unit.cli.conftest import CliFixture

CLI = Path(evenkeel_cli.__file__).parent
HOSTILE_TEXT = "\x1b]0;owned\x07\x1b[2J\x1b[8mhidden\x9b31m\u202eexe.txt\u2066\u200b\u061c\u2028\ufeff\U000e0041\x7f\b"
CONTROL_CHARACTERS = set(HOSTILE_TEXT) - set("]0;owned[2J8mhidden31mexe.txt")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_only_the_printer_class_writes_to_the_terminal() -> None:
    """Any other way to print would bypass the function that escapes control characters."""
    writes = []
    for path in sorted(CLI.rglob("*.py")):
        if path.name == "render.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                is_print = called in {"print", "typer.echo", "typer.secho", "click.echo", "pprint", "rich.print"}
                is_write = called.endswith((".write", ".writelines")) and ("std" in called or "stream" in called)
                if is_print or is_write or called == "os.write":
                    writes.append(f"{path.name}:{node.lineno} {called}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"typer.confirm", "typer.prompt"}:
                # The question has only fixed words; `note` printed the subject before.
                assert not any(isinstance(part, ast.Subscript) for part in ast.walk(node.args[0]))

    assert writes == []


@pytest.mark.parametrize("folder", [Path(sys.executable).parent.parent, Path("/")], ids=["project", "elsewhere"])
def test_printed_command_can_be_pasted_if_evenkeel_is_outside_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    stream = Terminal()
    page = Printer(stream, {"NO_COLOR": "1", "PATH": "/nowhere"}, columns=80)

    page.next_command("evenkeel jobs wait job-1")
    page.pairs([("next", "evenkeel why job-1")])

    commands = [line.split()[1] for line in stream.getvalue().splitlines()]
    assert len(set(commands)) == 1
    assert (folder / commands[0]).samefile(Path(sys.executable).with_name("evenkeel"))


def test_printed_lines_tables_and_logs_escape_control_characters() -> None:
    stream = Terminal()
    page = Printer(stream, {"NO_COLOR": "1"}, columns=80)

    page.line(HOSTILE_TEXT)
    page.text(f"one\r\ntwo\rthree {HOSTILE_TEXT}\n")
    page.pairs([("detail", HOSTILE_TEXT)])

    assert set(stream.getvalue()) & CONTROL_CHARACTERS == set()
    assert "one\ntwo\nthree " in stream.getvalue()


def test_external_text_cannot_style_the_terminal() -> None:
    stream = Terminal()
    page = Printer(stream, {}, columns=80)

    page.line(f"{page.bold('ours')} \x1b[31mtheirs\x1b[0m")

    assert stream.getvalue() == "\x1b[1mours\x1b[0m ?[31mtheirs?[0m\n"


def test_escaped_json_has_the_same_value() -> None:
    stream = Terminal()

    Printer(stream, {}).json({"detail": HOSTILE_TEXT, "half": "\ud800"})

    assert set(stream.getvalue()) & CONTROL_CHARACTERS == set()
    assert json.loads(stream.getvalue()) == {"detail": HOSTILE_TEXT, "half": "\ud800"}


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_logs_escape_control_characters_unless_raw_is_requested(cli: CliFixture, follow: tuple[str, ...]) -> None:
    job = a_job(1, state="SUCCEEDED", current_attempt=1)
    attempt = an_attempt(job, 1, ended_at=job.submitted_at)
    store(cli.gateway.fakes.ledger, job, attempt)
    cli.gateway.fakes.cluster.launch(LaunchSpec(job.spec, attempt, "", "trainer"))
    cli.gateway.fakes.cluster.text[f"{job.job_id}-a1-0"] = "\x1b[2Jlog\u202e"

    escaped_result = cli.run("jobs", "logs", job.job_id, *follow, terminal=True)
    raw = cli.run("jobs", "logs", job.job_id, *follow, "--raw", terminal=True)

    assert (escaped_result.out.strip(), raw.out.strip()) == ("?[2Jlog?", "\x1b[2Jlog\u202e")


def test_error_messages_escape_control_characters(cli: CliFixture) -> None:
    problem = {"code": "REFUSED", "detail": f"bad {HOSTILE_TEXT}", "hint": HOSTILE_TEXT, "requestId": "r"}
    cli.next_answers = [ApiResponse(400, {}, json.dumps(problem))] * 3

    result = cli.run("jobs", "ls", terminal=True)

    assert result.exit_code == 2
    assert set(result.err) & CONTROL_CHARACTERS == set()


def test_usage_errors_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", f"--{HOSTILE_TEXT}"]) == 2

    assert set(capsys.readouterr().err) & CONTROL_CHARACTERS == set()


def test_printer_keeps_tabs_and_line_ends() -> None:
    assert escape_control_characters("a\tb\nc é 日本 ●") == "a\tb\nc é 日本 ●"


@pytest.mark.parametrize("columns", [None, 80])
def test_newline_in_a_reason_cannot_forge_an_output_line(columns: int | None) -> None:
    stream = io.StringIO()
    page = Printer(stream, {}, columns=columns)

    page.pairs([("reason", "failed\nstate   SUCCEEDED")])
    page.paragraph("failed\nstate   SUCCEEDED")

    assert [line for line in stream.getvalue().splitlines() if line.startswith("state")] == []

"""Completion of commands, options, values and ids.

It never fails, and never prints a word that a shell would interpret.
"""

import subprocess
from pathlib import Path

import pytest

from evenkeel_cli import completion
from tests.unit.api.gateway import ROOT
from tests.unit.api.seeds import a_job, store
from tests.unit.cli.conftest import CliFixture

IDS = {
    "job": ["job-0000000001", "llama", "$(reboot)", "a b"],
    "incident": ["inc-0000000001"],
    "node": ["i-00000000000000001"],
    "team": ["nlp"],
}


def completion_of(*words: str) -> list[str]:
    return completion.complete(words, lambda kind: IDS[kind])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["inc"], ["incidents"]),
        (["jobs", "su"], ["submit", "suspend"]),
        (["jobs", "show", "job-"], ["job-0000000001"]),
        (["jobs", "show", ""], ["@latest", "job-0000000001", "llama"]),
        (["get", "no"], ["nodes"]),
        (["logs", "ll"], ["llama"]),
        (["describe", "job", "ll"], ["llama"]),
        (["incidents", "approve", ""], ["@latest", "inc-0000000001"]),
        (["nodes", "cordon", "--reason", "x", "i-"], ["i-00000000000000001"]),
        (["why", "i"], ["inc-0000000001", "i-00000000000000001"]),
        (["jobs", "ls", "--st"], ["--state"]),
        (["jobs", "ls", "-o", "j"], ["json"]),
        (["jobs", "ls", "--team", ""], ["nlp"]),
        (["jobs", "wait", "llama", ""], []),
        (["jobs", "nothing", ""], []),
        (["nothing", ""], []),
        ([], None),
    ],
)
def test_completion_suggests_candidates_for_the_typed_word(words: list[str], expected: list[str] | None) -> None:
    candidates = completion_of(*words)

    assert candidates == expected if expected is not None else "jobs" in candidates


def test_completion_reads_ids_cached_for_its_context(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1), a_job(2))

    completion.refresh("job")

    names = completion.cached_names("job")
    assert {"job-0000000001", "llama-1", "job-0000000002", "llama-2"} == set(names)
    (file,) = Path(cli.folder, ".cache", "evenkeel", "completion").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    cli.write_context({**cli.context, "url": f"{cli.url.removesuffix('/v1')}/other/v1"})
    assert completion._cache_file("job") != file


def test_api_that_does_not_answer_gives_no_candidates(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.setattr("subprocess.Popen", lambda *words, **_options: begun.append(words))

    result = cli.run(completion.COMPLETE, "jobs", "show", "job-")

    assert (result.exit_code, result.out, result.err) == (0, "", "")
    assert len(begun) == 1


def test_completion_without_a_context_prints_nothing(cli: CliFixture) -> None:
    (cli.folder / ".evenkeel" / "context.json").unlink()

    result = cli.run(completion.COMPLETE, "jobs", "show", "")

    assert (result.exit_code, result.out, result.err) == (0, "", "")


def test_bash_completes_with_the_printed_script(cli: CliFixture, tmp_path: Path) -> None:
    script = cli.run("completion", "bash").out
    (tmp_path / "script").write_text(script, encoding="utf-8")
    typed_text = (
        f"source {tmp_path}/script; COMP_WORDS=(evenkeel jobs sus); COMP_CWORD=2; _evenkeel; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )

    completed_process = subprocess.run(["bash", "-c", typed_text], capture_output=True, text=True, check=True, cwd=ROOT)

    assert (completed_process.stdout, completed_process.stderr) == ("suspend\n", "")


def test_unknown_shell_is_a_usage_error(cli: CliFixture) -> None:
    assert cli.run("completion", "tcsh").exit_code == 2

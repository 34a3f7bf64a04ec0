"""The documented promises of the training contract."""

import ast
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.domain.checkpoints import Grade, RejectionCode
from evenkeel.training.layout import Checkpoint
from evenkeel.training.run import Run
from evenkeel.training.storage import open_storage

PROJECT = Path(__file__).resolve().parents[3]
PAGE = PROJECT / "docs" / "training-contract.md"
EXAMPLE = PROJECT / "examples" / "pytorch"


@pytest.fixture
def attempt_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("EVENKEEL_CHECKPOINT_URI", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("EVENKEEL_ATTEMPT", "1")
    for name in ("EVENKEEL_RESUME_FROM", "WORLD_SIZE", "RANK", "LOCAL_RANK", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def test_training_script_of_the_documentation_saves_and_resumes(
    attempt_1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = attempt_1 / "train.py"
    script.write_text(PAGE.read_text().split("```python\n")[1].split("```")[0])
    loaded: list[bytes] = []
    trained: list[int] = []

    def train_one(step: int) -> float:
        trained.append(step)
        return 1.0 / (step + 1)

    script_names = {"load": loaded.append, "train_one": train_one, "dump": lambda: b"weights", "total_steps": 1200}
    runpy.run_path(str(script), script_names)
    monkeypatch.setenv("EVENKEEL_ATTEMPT", "2")
    trained.clear()
    runpy.run_path(str(script), script_names)

    assert loaded == [b"weights"]
    assert trained == list(range(1000, 1200))
    assert Checkpoint(step=1000, attempt=1) in open_storage(str(attempt_1 / "checkpoints")).checkpoints()


TORCHRUN = f"""#!{sys.executable}
# As torchrun does: it passes SIGTERM on, and ends with 1 whatever its worker ended with.
import signal, subprocess, sys
worker = subprocess.Popen([sys.executable, sys.argv[-1]])
signal.signal(signal.SIGTERM, lambda *_: worker.terminate())
sys.exit(1 if worker.wait() else 0)
"""
SIGNAL_HANDLER = "signal.signal(signal.SIGTERM, lambda *_: end(143)); print('ready', flush=True); time.sleep(30)"


@pytest.mark.parametrize(
    ("worker", "is_stopped", "code"),
    [
        ("end(66)", False, 66),
        ("pathlib.Path(os.environ['EXIT_CODE_FILE']).write_text('66'); end(143)", False, 66),
        ("sys.exit(9)", False, 1),
        ("pass", False, 0),
        (SIGNAL_HANDLER, True, 143),
    ],
)
def test_documented_pod_command_keeps_the_exit_code_of_torchrun(
    worker: str, is_stopped: bool, code: int, tmp_path: Path
) -> None:
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(TORCHRUN)
    torchrun.chmod(0o755)
    functions = ast.parse((EXAMPLE / "train.py").read_text()).body
    end = next(
        ast.unparse(function)
        for function in functions
        if isinstance(function, ast.FunctionDef) and function.name == "end"
    )
    imports = "import contextlib, os, pathlib, signal, sys, time; from pathlib import Path"
    (tmp_path / "train.py").write_text(f"{imports}\n{end}\n{worker}\n")

    pod = subprocess.Popen(
        ["sh", EXAMPLE / "pod.sh", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    if is_stopped:
        assert pod.stdout
        assert pod.stdout.readline() == "ready\n"
        pod.terminate()

    pod.communicate(timeout=60)
    assert pod.returncode == code


def test_checkpoint_folder_is_proven_by_python_without_packages(tmp_path: Path) -> None:
    Run(open_storage(str(tmp_path)), job_id="job-rings", attempt=1).save(10, b"weights")

    # -I -S: no site-packages, no environment, so nothing but the standard library can be found.
    script = (
        f"import sys, runpy; sys.path.insert(0, {str(PROJECT / 'shared')!r}); "
        f"sys.argv = ['training', 'prove', {str(tmp_path)!r}]; "
        "runpy.run_module('evenkeel.training', run_name='__main__')"
    )
    completed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )

    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.startswith("Step 10 of attempt 1 is valid")


def test_training_page_lists_every_variable_rejection_code_and_grade() -> None:
    page = PAGE.read_text()
    source = "".join(path.read_text() for path in (PROJECT / "shared" / "evenkeel" / "training").glob("*.py"))
    names = {*re.findall(r"EVENKEEL_[A-Z_]+", source), *RejectionCode, Grade.PROVED, Grade.COMPLETE_BY_CONVENTION}

    assert {name for name in names if f"`{name}`" not in page} == set()

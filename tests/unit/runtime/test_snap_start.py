"""A SnapStart snapshot contains no client, credential, connection or random state."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from evenkeel.runtime import snap_start

ROOT = Path(__file__).resolve().parents[3]
HOOKS = """
before, after = [], []
register_before_snapshot, register_after_restore = before.append, after.append
"""
TAKE_SNAPSHOT = """
import importlib.util, json, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("handler", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
import snapshot_restore_py
for hook in snapshot_restore_py.before:
    hook()
from evenkeel.adapters import aws
from evenkeel.runtime import wiring
print(json.dumps({
    "ports": len(wiring._container_ports),
    "sessions": aws.session.cache_info().currsize,
    "sockets": [str(path) for path in Path("/proc/self/fd").iterdir() if path.is_socket()],
    "after": [hook.__name__ for hook in snapshot_restore_py.after],
    "adapters": "evenkeel.adapters.dynamo_ledger" in sys.modules,
}))
"""


@pytest.mark.parametrize("function", ["receive_event", "plan_recovery", "cordon_node"])
def test_snapshot_holds_no_client_credential_or_connection(function: str, tmp_path: Path) -> None:
    (tmp_path / "snapshot_restore_py.py").write_text(HOOKS, encoding="utf-8")
    environment = {
        "PYTHONPATH": f"{ROOT / 'shared'}:{tmp_path}",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start",
        "AWS_ACCESS_KEY_ID": "of-the-snapshot",
        "PATH": "",
    }
    words = [sys.executable, "-c", TAKE_SNAPSHOT, str(ROOT / "functions" / function / "handler.py")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "ports": 0,
        "sessions": 0,
        "sockets": [],
        "after": ["seed_again"],
        "adapters": True,
    }


def test_environments_of_one_snapshot_generate_different_random_numbers() -> None:
    state = random.getstate()
    drawn = set()
    for _ in range(3):
        random.setstate(state)
        snap_start.seed_again()
        drawn.add(random.random())
    random.setstate(state)

    assert len(drawn) == 3


@pytest.mark.parametrize("kind", ["", "on-demand", "provisioned-concurrency"])
def test_function_without_snapshots_registers_no_hook(kind: str) -> None:
    assert not snap_start.register_hooks({"AWS_LAMBDA_INITIALIZATION_TYPE": kind})

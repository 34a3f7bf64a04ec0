"""The local AWS engine: one emulator process on loopback, with IAM enforced.

The engine is ministack, pinned by requirements/engine.txt and installed in an environment of its own (.tools/engine).
Its process environment contains nothing of the caller's. Its function workers inherit it, and must see only the
credentials, endpoints and profiles of their function's configuration.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from evenkeel_local import ACCOUNT_ID, PROJECT, REGION
from evenkeel_local.processes import Child

PROGRAM: Final = PROJECT / ".tools" / "engine" / "bin" / "ministack"
_COMMAND: Final = (PROGRAM.with_name("python"), "-P", Path(__file__).with_name("engine_program.py"))
READY_SECONDS: Final = 60.0
_PORT_TRIES: Final = 5

# The services of the template and the tests. SageMaker and EKS are absent: a call that the local GPU cluster should
# get must fail here.
SERVICES: Final = (
    *("account", "apigateway", "cloudformation", "dynamodb", "dynamodbstreams", "ec2", "events", "iam", "kms"),
    *("lambda", "logs", "monitoring", "resource-groups", "s3", "scheduler", "sns", "sqs", "ssm", "states", "sts"),
    "tagging",
)


class EngineError(RuntimeError):
    """The engine did not start, or does not answer. The message names its log."""


class Engine:
    """A running engine. Stop it with `stop()`, or use it as a context manager."""

    def __init__(self, child: Child, port: int, run_dir: Path) -> None:
        self._child = child
        self.port = port
        self.run_dir = run_dir

    @classmethod
    def start(
        cls,
        run_dir: Path,
        *,
        port: int | None = None,
        sfn_mock_config: Mapping[str, Any] | None = None,
        wait_scale: float = 1.0,
        forks_workers: bool = True,
    ) -> Engine:
        """Start an engine on loopback and wait until it answers.

        Args:
            run_dir: Folder for its log, its data and its workers' files. `stop()` removes all but the log.
            port: The port to use; a free one if None.
            sfn_mock_config: Task results by state machine and test case, in the format of Step Functions Local.
            wait_scale: Factor on Wait states and retry delays; 0 skips them. Only for tests of workflows alone.
            forks_workers: Whether function workers are forks of a process that has imported their layer. Otherwise each
                imports it, as on AWS: a measurement of cold starts needs this.

        Raises:
            EngineError: It cannot bind its port, ended while starting, or did not answer in time.
        """
        if not PROGRAM.exists():
            raise EngineError(f"the AWS emulator is not installed at {PROGRAM.relative_to(PROJECT)}: run `make setup`")
        candidates = [port] if port is not None else [_free_port() for _ in range(_PORT_TRIES)]
        for candidate in candidates:
            with contextlib.suppress(_PortTakenError):
                return cls._start_on(candidate, run_dir.resolve(), sfn_mock_config, wait_scale, forks_workers)
        raise EngineError(
            f"the AWS emulator cannot bind 127.0.0.1:{', '.join(map(str, candidates))}: other processes use these ports"
        )

    @classmethod
    def _start_on(
        cls,
        port: int,
        run_dir: Path,
        sfn_mock_config: Mapping[str, Any] | None,
        wait_scale: float,
        forks_workers: bool,
    ) -> Engine:
        if not _can_bind(port):
            raise _PortTakenError
        for folder in ("tmp", "data", "home"):
            shutil.rmtree(run_dir / folder, ignore_errors=True)
            (run_dir / folder).mkdir(parents=True)
        nonce = secrets.token_hex(8)
        environment = _environment(run_dir, port, nonce, wait_scale)
        if sfn_mock_config is not None:
            mock_file = run_dir / "data" / "mock-config.json"
            mock_file.write_text(json.dumps(sfn_mock_config), encoding="utf-8")
            environment["SFN_MOCK_CONFIG"] = str(mock_file)
        if not forks_workers:
            environment["EVENKEEL_ENGINE_PLAIN_WORKERS"] = "1"
        log = run_dir / "engine.log"
        child = Child.start(_COMMAND, log=log, env=environment, cwd=run_dir, pid_file=run_dir / "engine.pid")
        engine = cls(child, port, run_dir)
        try:
            engine._wait_ready(nonce)
        except BaseException:
            engine.stop()
            raise
        return engine

    def _wait_ready(self, nonce: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if not self._child.is_running():
                if not _can_bind(self.port):
                    raise _PortTakenError
                code = self._child.returncode()
                raise EngineError(f"the AWS emulator ended during its start (exit {code}): see {self.log}")
            try:
                health = self._call_admin_api("GET", "/_ministack/health")
                self._call_admin_api("GET", "/_ministack/ready")
            except OSError:
                time.sleep(0.05)
                continue
            # Another emulator may have taken the port meanwhile: the nonce identifies this one.
            if health.get("edition") != nonce:
                raise _PortTakenError
            if health.get("auth") != "enabled":
                raise EngineError(f"the AWS emulator does not enforce IAM: see {self.log}")
            return
        raise EngineError(f"the AWS emulator did not answer within {READY_SECONDS:.0f} s: see {self.log}")

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def region(self) -> str:
        return REGION

    @property
    def account_id(self) -> str:
        return ACCOUNT_ID

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def log(self) -> Path:
        return self.run_dir / "engine.log"

    def allowed_requests(self, role: str) -> set[tuple[str, str]]:
        """Return action and resource of each request that the policies of a role allowed since the start."""
        lines = self._allowed_log.read_text(encoding="utf-8").splitlines() if self._allowed_log.exists() else []
        return {(action, resource) for name, action, resource in map(json.loads, lines) if name == role}

    @property
    def _allowed_log(self) -> Path:
        return self.run_dir / "allowed.jsonl"

    def is_running(self) -> bool:
        return self._child.is_running()

    def api_url(self, rest_api_id: str, stage: str) -> str:
        """Return the URL of a REST API. The host names of the engine do not resolve everywhere."""
        return f"{self.endpoint_url}/restapis/{rest_api_id}/{stage}/_user_request_"

    def reset(self) -> None:
        """Empty every service, including IAM: earlier identities no longer exist."""
        self._call_admin_api("POST", "/_ministack/reset")

    def mock_workflows(self, sfn_mock_config: Mapping[str, Any]) -> None:
        """Replace the mocked task results (Step Functions Local's format). An empty mapping removes them.

        An execution uses them when it is started on `<state machine ARN>#<test case>`.
        """
        self._call_admin_api("POST", "/_ministack/config", {"stepfunctions._sfn_mock_config": dict(sfn_mock_config)})

    def stop(self) -> None:
        """End the engine with its function workers, and remove their files.

        Idempotent: yes.
        """
        self._child.stop()
        for folder in ("tmp", "data", "home"):
            shutil.rmtree(self.run_dir / folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _call_admin_api(self, method: str, path: str, document: object = None) -> dict[str, Any]:
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(f"{self.endpoint_url}{path}", data=body, method=method)
        try:
            with _DIRECT.open(request, timeout=30) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            error.close()
            raise


class _PortTakenError(Exception):
    """Another process uses the port."""


# No proxy for loopback, regardless of the caller's environment.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _environment(run_dir: Path, port: int, nonce: str, wait_scale: float) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TZ") if name in os.environ}
    return inherited | {
        "PATH": os.defpath,
        "HOME": str(run_dir / "home"),  # empty: functions read no ~/.aws
        "TMPDIR": str(run_dir / "tmp"),
        "PYTHONUTF8": "1",
        "AUTH": "true",
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_HOST": "127.0.0.1",  # in the URLs that it returns
        "MINISTACK_ACCOUNT_ID": ACCOUNT_ID,
        "MINISTACK_REGION": REGION,
        "MINISTACK_EDITION": nonce,  # its health report returns it
        "SERVICES": ",".join(SERVICES),
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "LAMBDA_EXECUTOR": "local",
        "LAMBDA_ACCOUNT_CONCURRENCY": "1000",  # as on AWS: queued calls count too, and cost no process
        "DOCKER_HOST": f"unix://{run_dir}/home/no-docker",  # otherwise it removes containers at its start
        "STATE_DIR": str(run_dir / "data" / "state"),
        "S3_DATA_DIR": str(run_dir / "data" / "s3"),
        "SFN_WAIT_SCALE": str(wait_scale),
        "EVENKEEL_ENGINE_ALLOWED_LOG": str(run_dir / "allowed.jsonl"),
        "LOG_LEVEL": os.environ.get("EVENKEEL_ENGINE_LOG_LEVEL", "INFO"),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

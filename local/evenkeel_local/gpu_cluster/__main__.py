"""`local-gpu-cluster`, or `python -m evenkeel_local.gpu_cluster`: run a local GPU cluster in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
from pathlib import Path

from pydantic import ValidationError

from evenkeel_local.gpu_cluster import config
from evenkeel_local.gpu_cluster.host import ClusterOptions, ClusterProcess, TcpPorts
from evenkeel_local.gpu_cluster.snapshots import SnapshotRefused

CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def main(argv: list[str] | None = None) -> int:
    """Run the cluster until a signal or a request ends it."""
    about = "Run a local GPU cluster in the foreground."
    parser = argparse.ArgumentParser(prog="local-gpu-cluster", description=about)
    parser.add_argument("--config", type=Path, help="the cluster's configuration, as JSON; the default is four nodes")
    parser.add_argument("--run-dir", type=Path, help="where pods keep their files (default: a temporary folder)")
    parser.add_argument("--state-file", type=Path, help="written when ready: addresses, CA, admin token")
    parser.add_argument(
        "--data", type=Path, help="keep the state in this folder, and continue from it (default: in memory)"
    )
    parser.add_argument("--aws-port", type=_port, default=0, help="port of the SageMaker and EKS endpoint")
    parser.add_argument("--kubernetes-port", type=_port, default=0, help="port of the Kubernetes API")
    parser.add_argument("--control-port", type=_port, default=0, help="port of the control address")
    parser.add_argument("--stop-with-stdin", action="store_true", help="end when standard input closes")
    access = parser.add_mutually_exclusive_group()
    access.add_argument("--engine-endpoint", help="the AWS emulator that authenticates callers and receives events")
    access.add_argument("--no-auth", action="store_true", help="allow every request (the default without an engine)")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        document = json.loads(arguments.config.read_text()) if arguments.config else {}
        settings = config.read_config(document)
        config.check_types(settings)
    except ValidationError as wrong:
        print(f"the configuration cannot be used: {config.error_text(wrong)}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as wrong:
        print(f"the configuration cannot be used: {wrong}", file=sys.stderr)
        return 2
    credentials = {name: os.environ[name] for name in CREDENTIALS if os.environ.get(name)}
    if arguments.engine_endpoint and "AWS_ACCESS_KEY_ID" not in credentials:
        print("with --engine-endpoint the cluster needs AWS credentials of its own in the environment", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        run_dir = arguments.run_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-cluster-")))
        ports = TcpPorts(arguments.aws_port, arguments.kubernetes_port, arguments.control_port)
        options = ClusterOptions(
            settings,
            run_dir.resolve(),
            ports,
            arguments.engine_endpoint,
            credentials,
            arguments.state_file,
            arguments.data.resolve() if arguments.data else None,
        )
        try:
            asyncio.run(_run(options, arguments.state_file is not None, arguments.stop_with_stdin))
        except (OSError, SnapshotRefused) as failure:
            print(f"the cluster cannot start: {failure}", file=sys.stderr)
            return 1
    return 0


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is not a port: use 0 (any free port) to 65535")
    return number


async def _run(options: ClusterOptions, quiet: bool, stop_with_stdin: bool) -> None:
    cluster_process = ClusterProcess(options)
    if stop_with_stdin:
        await asyncio.get_running_loop().connect_read_pipe(lambda: _UntilClosed(cluster_process), sys.stdin)
    await cluster_process.run(on_ready=None if quiet else lambda: _announce(cluster_process))


class _UntilClosed(asyncio.Protocol):
    """Ends the cluster when standard input closes: the process that started the cluster has ended."""

    def __init__(self, cluster_process: ClusterProcess) -> None:
        self._cluster_process = cluster_process

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the cluster."""
        self._cluster_process.request_stop()


def _announce(cluster_process: ClusterProcess) -> None:
    state = cluster_process.state()
    print(f"SageMaker and EKS  {state['sagemakerUrl']}")
    print(f"Kubernetes         {state['kubernetesUrl']}  (CA {state['runDir']}/ca.pem)")
    print(f"admin token        {state['adminToken']}")
    print(f"control            {state['controlUrl']}/control/state", flush=True)


if __name__ == "__main__":
    sys.exit(main())

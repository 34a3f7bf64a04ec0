"""A second command in a container, for `kubectl exec`: a real process, controlled over a WebSocket.

Source: `k8s.io/apimachinery/pkg/util/remotecommand` and the WebSocket protocols `v4` and `v5.channel.k8s.io`. Each
message starts with the number of its channel; v5 closes a channel with 255.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import signal
import struct
import termios
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import WSMsgType, web

from evenkeel_local.gpu_cluster import processes
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.processes import MARK, ProcessGuard, die_with_parent

STDIN, STDOUT, STDERR, RESULT, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
CHUNK_BYTES = 32 * 1024


Begin = Callable[[], Awaitable["ExecSession"]]
"""Starts a command."""


@dataclass
class ExecSession:
    """The process, its outputs by channel, and its terminal if it has one."""

    process: asyncio.subprocess.Process
    outputs: dict[int, asyncio.StreamReader]
    guard: ProcessGuard
    terminal: int | None = None

    async def write(self, data: bytes) -> None:
        """Write to the input of the process."""
        with contextlib.suppress(OSError):  # it has ended, or closed its input
            if self.terminal is not None:
                os.write(self.terminal, data)
            elif self.process.stdin is not None:
                self.process.stdin.write(data)
                await self.process.stdin.drain()

    def end_input(self) -> None:
        """Close the input of the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def resize(self, size: Obj) -> None:
        """Set the size of the terminal."""
        if self.terminal is not None:
            window_size = struct.pack("HHHH", int(size.get("Height") or 0), int(size.get("Width") or 0), 0, 0)
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, window_size)

    def end(self) -> None:
        """Kill the process group."""
        processes.kill_group(self.process.pid, signal.SIGKILL)
        self.guard.send("-", self.process.pid)


async def start_session(
    argv: list[str],
    env: Mapping[str, str],
    folder: Path,
    container_id: str,
    guard: ProcessGuard,
    *,
    tty: bool,
    stdin: bool,
) -> ExecSession:
    """Start a command in a container's environment. It has the container's mark, so it ends with the container.

    Raises:
        OSError: the command cannot be started.
    """
    pipe, devnull = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    marked_environment = {**env, MARK: container_id}
    start_process = functools.partial(asyncio.create_subprocess_exec, *argv, cwd=folder, start_new_session=True)
    if not tty:
        process = await start_process(
            stdin=pipe if stdin else devnull,
            stdout=pipe,
            stderr=pipe,
            env=marked_environment,
            preexec_fn=die_with_parent,
        )
        guard.send("+", process.pid)
        streams = {STDOUT: process.stdout, STDERR: process.stderr}
        return ExecSession(
            process,
            {channel: stream_reader for channel, stream_reader in streams.items() if stream_reader is not None},
            guard,
        )
    terminal, other_end = os.openpty()
    try:
        env = {"TERM": "xterm", **marked_environment}
        process = await start_process(
            stdin=other_end, stdout=other_end, stderr=other_end, env=env, preexec_fn=_take_terminal
        )
    except OSError:
        os.close(terminal)
        raise
    finally:
        os.close(other_end)
    guard.send("+", process.pid)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(terminal), "rb", buffering=0)
    )
    return ExecSession(process, {STDOUT: reader}, guard, terminal)


def _take_terminal() -> None:
    """Make standard input the terminal of this session. The child process calls this between fork and exec."""
    die_with_parent()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def serve_session(http: web.Request, begin: Begin) -> web.WebSocketResponse:
    """Serve a session over a WebSocket until the command ends or the client disconnects."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS)
    await socket.prepare(http)
    try:
        session = await begin()
    except ApiError as failure:
        await socket.send_bytes(bytes([RESULT]) + json.dumps(failure.status()).encode())
        await socket.close()
        return socket
    reading: asyncio.Task[None] | None = None
    try:
        reading = asyncio.create_task(_read_messages(socket, session))
        await asyncio.gather(*(_send_output(socket, channel, reader) for channel, reader in session.outputs.items()))
        code = await session.process.wait()
        await socket.send_bytes(bytes([RESULT]) + json.dumps(exit_status(code)).encode())
        await socket.close()
    except ConnectionError:
        pass  # the client disconnected: end the command
    finally:
        session.end()
        if reading is not None:
            reading.cancel()
        if session.terminal is not None:
            os.close(session.terminal)
    return socket


async def _send_output(socket: web.WebSocketResponse, channel: int, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):  # the last process with this terminal has closed it
        while data := await reader.read(CHUNK_BYTES):
            await socket.send_bytes(bytes([channel]) + data)


async def _read_messages(socket: web.WebSocketResponse, session: ExecSession) -> None:
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN:
            await session.write(data)
        elif channel == RESIZE:
            with contextlib.suppress(ValueError):
                session.resize(json.loads(data))
        elif channel == CLOSE and data[:1] == bytes([STDIN]):
            session.end_input()
    session.end()  # the client disconnected


def exit_status(code: int) -> Obj:
    """Return the Status for the exit code of a command."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    shown = code if code > 0 else 128 - code
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {shown}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(shown)}]},
    }

"""Kill the processes of a local GPU cluster that was killed.

Runs as a script with the name and value of the cluster's mark. It reads `+<group>` and `-<group>` lines. When the pipe
closes, it kills the remaining groups and every process with the mark.
"""

import os
import signal
import sys
from pathlib import Path


def _marked_processes(wanted_mark: bytes) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted_mark in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


def main() -> None:
    """Watch the pipe until it closes, then clean up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        sign, group = line[:1], int(line[1:])
        if sign == b"+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    mark = f"{sys.argv[1]}={sys.argv[2]}".encode()
    for _ in range(5):
        pids = _marked_processes(mark)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


if __name__ == "__main__":
    main()

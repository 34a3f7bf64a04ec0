"""Meanings of exit codes of pods. A code shows how a process ended, and at most suggests the cause."""

_MEANINGS = {
    126: "its command cannot be executed",
    127: "its command was not found in the image",
    134: "killed by SIGABRT; possibly a failed check, or NCCL's watchdog after a timeout",
    135: "killed by SIGBUS; possibly /dev/shm is full",
    136: "killed by SIGFPE",
    130: "killed by SIGINT",
    137: "killed by SIGKILL; possibly out of memory",
    139: "killed by SIGSEGV; possibly a fault in native code or in a driver",
    143: "killed by SIGTERM: it was asked to stop",
}
"""Source: https://tldp.org/LDP/abs/html/exitcodes.html, and 128 + n after signal n."""


def meaning_of(exit_code: int) -> str:
    """Return the meaning of an exit code; empty if only the application knows it."""
    return _MEANINGS.get(exit_code, "")

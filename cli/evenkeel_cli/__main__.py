"""Start of the command. Modules load with Ctrl-C at its default, so that it ends the command without a traceback."""

import signal
import sys


def main() -> int:
    """Run the command and return its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from evenkeel_cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())

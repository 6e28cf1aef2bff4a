"""The command ``diel``, which is ``python -m diel`` too."""

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit; Ctrl-C during its imports ends the process silently."""
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interrupts:  # and is not ignored, as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from diel.cli.main import main as run_command
    from diel.exit_codes import STOPPED

    if interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run_command()
    except KeyboardInterrupt:
        print("diel: interrupted", file=sys.stderr, flush=True)
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()

"""What launchd starts: `p2ptrain` in this process, whose mistakes in the options (exit code 2) count as a success.

launchd starts again whatever ends without success, and knows no exit code that it leaves alone. No other start mends
such a mistake; the log has its line.
"""

import sys

from node.system.errors import EXIT_USAGE


def main() -> None:
    """Run the command line, and leave with its exit code or with 0."""
    from p2ptrain.__main__ import main as program

    try:
        program()
    except SystemExit as left:
        sys.exit(0 if left.code == EXIT_USAGE else left.code)


if __name__ == "__main__":
    main()

"""`python -m p2ptrain`, and the `p2ptrain` command: the one place where this package reaches up to the runtime."""

import sys

from node.system import interrupts, standard_streams


def main() -> None:
    """Run the command line and leave with its exit code."""
    interrupts.at_once()  # before anything else is imported
    standard_streams.usable()
    from node.cli import program

    try:
        code = program()
    except KeyboardInterrupt:  # while another error was being told
        code = 130
    interrupts.at_once()  # Python takes its time to end, and everything is done
    sys.exit(code)


if __name__ == "__main__":
    main()

"""The `hoptui` command, also as `python -m hoptui`."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C while it is still being imported ends it as quietly as later."""
    try:
        from hoptui.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""The `hoptui` command, also as `python -m hoptui`."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C while it is still being imported ends it as quietly as later."""
    try:
        if sys.argv[1:3] == ["daemon", "forward"]:  # a viewer at the other end of a line waits for it
            from hoptui.cli.forwarding import main as forward

            return forward(sys.argv[3:])
        from hoptui.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

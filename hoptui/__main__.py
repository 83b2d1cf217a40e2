"""The `hoptui` command, also as `python -m hoptui`."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C while it is still being imported ends it as quietly as later."""
    try:
        words = sys.argv[1:]
        if words[:2] == ["daemon", "forward"]:  # a viewer at the other end of a line waits for it
            from hoptui.cli.commands.daemon_forward import main as forward

            return forward(words[2:])
        if words[:1] == ["__complete"]:  # somebody waits for it with a finger on the tab key
            from hoptui.cli.completion.candidates import main as complete

            return complete(words[1:])
        if words[:1] == ["run"] and words[1:2] not in (["--help"], ["-h"]):  # the command starts at once
            from hoptui.injection.launch import main as launch

            return launch(words[1:])
        if not words or words[0] == "attach":
            from hoptui.cli import launcher

            if launcher.is_plain(words):
                return launcher.main(words)
        from hoptui.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

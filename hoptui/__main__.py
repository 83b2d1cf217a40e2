"""`python -m hoptui` is the `hoptui` command."""

import sys

from hoptui.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

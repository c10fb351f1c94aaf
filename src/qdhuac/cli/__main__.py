"""`python -m qdhuac.cli`."""

import sys

from qdhuac.cli import main

if __name__ == "__main__":
    sys.exit(main())

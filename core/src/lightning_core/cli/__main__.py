"""`python -m lightning_core.cli`: the command line, where the script is not on the path."""

import sys

from lightning_core.cli import main

sys.exit(main())

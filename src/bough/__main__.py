"""`python -m bough`."""

import sys

from bough.cli import main

sys.exit(main())

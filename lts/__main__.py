"""`python -m lts` is `lts`."""

import sys

from lts.cli import main

sys.exit(main())

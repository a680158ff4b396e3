"""``python -m skipway``."""

import sys

from skipway.cli import main

sys.exit(main())

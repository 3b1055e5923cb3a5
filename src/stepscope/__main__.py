"""`python -m stepscope` is the command `stepscope`."""

from __future__ import annotations

import sys

from stepscope.cli.main import main

sys.exit(main())

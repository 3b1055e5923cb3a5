"""What `make bench` runs: reading traces, held against its budgets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    script = Path(__file__).with_name("ingest.py")
    sys.exit(subprocess.call([sys.executable, script, *(sys.argv[1:] or ["--scale"])]))

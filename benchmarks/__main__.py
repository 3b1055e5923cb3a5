"""What `make bench` runs: reading traces, analyses, report, capture, many ranks, each against its budgets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

if __name__ == "__main__":
    scripts = [["ingest.py", *(sys.argv[1:] or ["--scale"])]]
    if not sys.argv[1:]:
        scripts += [
            ["analyses.py"],
            ["report.py"],
            ["timeline.py"],
            ["window.py"],
            ["capture.py"],
            ["ranks.py"],
        ]
    codes = [subprocess.call([sys.executable, HERE / script, *arguments]) for script, *arguments in scripts]
    sys.exit(next((code for code in codes if code), 0))

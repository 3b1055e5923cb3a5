"""Records a program as it runs: its step without a profiler, then a light and a full profile.

This package runs inside other people's training processes. It imports the standard library alone; torch is
used once the program has imported it.
"""

from __future__ import annotations

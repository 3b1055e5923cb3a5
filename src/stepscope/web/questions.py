"""Queries to begin with, each for a question that people ask of a trace."""

from __future__ import annotations

__all__ = ["QUESTIONS"]

QUESTIONS = (
    (
        "Which kernels take the most time?",
        """SELECT name, count(*) AS calls, sum(dur_ns) AS total_ns
FROM kernels GROUP BY name ORDER BY total_ns DESC LIMIT 20""",
    ),
    (
        "How long is each step?",
        """SELECT step, dur_ns, kernel_ns, cpu_ns, other_ns
FROM analyses.steps ORDER BY step""",
    ),
    (
        "Why is the device idle?",
        """SELECT side, spent_in, drained_by, gaps, idle_ns, share
FROM analyses.idle_gaps ORDER BY idle_ns DESC LIMIT 20""",
    ),
    (
        "Where does the host wait for the device?",
        "SELECT * FROM analyses.host_syncs LIMIT 20",
    ),
    (
        "Which operators take the most of the host's own time?",
        """SELECT name, count(*) AS calls, sum(self_ns) AS own_ns
FROM ops GROUP BY name ORDER BY own_ns DESC LIMIT 20""",
    ),
    (
        "Which launches are slowest?",
        """SELECT name, count(*) AS calls, max(dur_ns) AS longest_ns, sum(dur_ns) AS total_ns
FROM launches GROUP BY name ORDER BY total_ns DESC LIMIT 20""",
    ),
    (
        "How busy is the device over time?",
        """SELECT row_number() OVER (ORDER BY start_ns) AS slice, utilization_share, kernel_ns, cpu_ns
FROM analyses.time_slices ORDER BY slice""",
    ),
    (
        "What do copies cost?",
        "SELECT * FROM analyses.copies LIMIT 20",
    ),
    (
        "How much faster is it without the profiler?",
        "SELECT * FROM analyses.profiler_costs",
    ),
    (
        "What does the file contain?",
        "SELECT * FROM analyses.categories",
    ),
)
"""A question and its query; all of them can be asked of any trace."""

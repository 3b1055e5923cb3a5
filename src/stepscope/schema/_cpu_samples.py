"""Side tables of samplers of the CPU: perf, py-spy and whatever writes stacks as they do."""

from __future__ import annotations

from stepscope.schema.events import Column, StoredTable

__all__ = ["CPU_SAMPLES"]

CPU_SAMPLES = (
    StoredTable(
        "cpu_samples",
        "Samples of the CPU; equal ones without a time are one row.",
        (
            Column("process", "int64", "Process, where the file says it."),
            Column("thread", "int64", "Thread, as the system numbers it, where the file says it."),
            Column("command", "string", "Name of the thread or program."),
            Column("cpu", "int64", "Processor it ran on."),
            Column(
                "clock_ns", "int64", "When, by the sampler's own clock; NULL where the file has no times."
            ),
            Column("event", "string", "What was counted until the sample: cpu-clock, cycles; NULL for time."),
            Column("samples", "int64", "How many samples the row stands for.", always=True),
            Column("weight", "double", "What they stand for: ns of time, or counted events.", always=True),
            Column("stack", "int64", "Number of the stack, in `sampled_stacks`.", always=True),
        ),
    ),
    StoredTable(
        "sampled_stacks",
        "Stacks of the samples: one row for each frame in a stack.",
        (
            Column("stack", "int64", "Number of the stack.", always=True),
            Column("depth", "int64", "Place in it, 0 for the innermost.", always=True),
            Column("frame", "int64", "Number of the frame, in `sampled_frames`.", always=True),
        ),
    ),
    StoredTable(
        "sampled_frames",
        "Frames of the stacks, each once.",
        (
            Column("frame", "int64", "Number of the frame.", always=True),
            Column("name", "string", "Name of the function.", always=True),
            Column("module", "string", "Library, program or file it is in."),
            Column("line", "int64", "Line, where the file says it."),
            Column("part", "string", "What kind of code it is: see `cpu_parts`.", always=True),
        ),
    ),
    StoredTable(
        "cpu_counters",
        "Counters of the CPU over a whole run, as perf stat prints them.",
        (
            Column("run", "int64", "Number of the run in the file, from 0.", always=True),
            Column("scope", "string", "Thread, processor or program that it is of; NULL for all."),
            Column("event", "string", "What was counted.", always=True),
            Column("unit", "string", "Unit of the value; NULL for a count."),
            Column("value", "double", "The value; NULL if it was not counted."),
            Column("counted_share", "double", "Part of the run in which it was counted; NULL if all of it."),
        ),
    ),
)
"""In the order of their pages."""

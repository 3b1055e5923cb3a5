"""Side tables of compile logs: what torch.compile wrote about its own work."""

from __future__ import annotations

from stepscope.schema.events import Column, StoredTable

__all__ = ["COMPILE_LOGS"]

_WHOSE = (
    Column(
        "rank",
        "int64",
        "Rank that wrote it: by the name of its file, else by the entry; NULL if neither says.",
    ),
    Column("process", "int64", "Process that wrote it."),
    Column(
        "region", "string", "What was compiled, frame/version, as in `compiled_regions`; NULL outside of all."
    ),
)
_WHEN = Column("start_ns", "int64", "When it was written; NULL where the log does not tell the date.")

COMPILE_LOGS = (
    StoredTable(
        "logged_compilations",
        "Compilations that a compile log has: one row each time that one was begun.",
        (
            *_WHOSE,
            Column(
                "kind",
                "string",
                "frame: a function; backward: its backward; runtime: work at its first run.",
                always=True,
            ),
            Column(
                "turn",
                "int64",
                "How often the same region had been compiled before in this process.",
                always=True,
            ),
            Column("attempts", "int64", "Starts of tracing: one more after each graph break.", always=True),
            Column("function", "string", "Name of the function."),
            Column("file", "string", "Its file."),
            Column("line", "int64", "Its first line."),
            Column("called_from", "string", "Line of the caller: file(line): function."),
            Column("start_ns", "int64", "When it began; NULL where the log does not tell the date."),
            Column("dur_ns", "int64", "How long it took; NULL if the log does not have its end."),
            Column("backend_ns", "int64", "Of that, the backend."),
            Column("inductor_ns", "int64", "Of that, Inductor."),
            Column("code_ns", "int64", "Of that, writing and compiling code."),
            Column("restarts_ns", "int64", "Of that, tracing that was thrown away and begun again."),
            Column("graph_ops", "int64", "Operators in its graph."),
            Column("layers", "int64", "Layers of one list of modules that are in its graph."),
            Column("guards", "int64", "Guards that are checked before each run."),
            Column("restarts", "string", "Why tracing was begun again."),
            Column("recompiled_because", "string", "The first guard that failed, of a later version."),
            Column("failed", "string", "Why it failed; NULL if it did not."),
        ),
    ),
    StoredTable(
        "logged_phases",
        "Phases of compiling, nested, as a compile log times them.",
        (
            *_WHOSE,
            Column("name", "string", "Name of the phase.", always=True),
            Column("detail", "string", "The function of torch behind it."),
            Column("depth", "int64", "How many phases are around it.", always=True),
            Column("start_ns", "int64", "When it began.", always=True),
            Column("dur_ns", "int64", "How long it took.", always=True),
            Column("self_ns", "int64", "The same without phases inside.", always=True),
        ),
    ),
    StoredTable(
        "logged_breaks",
        "Graph breaks that a compile log has.",
        (
            *_WHOSE,
            Column("attempt", "int64", "Which start of tracing met it, from 0."),
            _WHEN,
            Column("file", "string", "File of the user's line."),
            Column("line", "int64", "The line."),
            Column("function", "string", "The function around it."),
            Column("code", "string", "Text of the line."),
            Column("reason", "string", "Why tracing could not go on.", always=True),
            Column("hint", "string", "What torch says can be done."),
            Column("skipped", "int64", "1 if the whole function runs uncompiled because of it.", always=True),
        ),
    ),
    StoredTable(
        "logged_recompiles",
        "Recompilations that a compile log has: one row for each version whose guards failed.",
        (
            *_WHOSE,
            _WHEN,
            Column("function", "string", "Name of the function."),
            Column("file", "string", "Its file."),
            Column("line", "int64", "Its first line."),
            Column("version", "string", "The region whose guard failed."),
            Column("guard", "string", "The guard that failed.", always=True),
            Column("code", "string", "Text of the line that made the guard, where torch says it."),
            Column(
                "limit",
                "int64",
                "1 if torch gave up: the function runs uncompiled from then on.",
                always=True,
            ),
        ),
    ),
    StoredTable(
        "logged_caches",
        "Lookups in the caches of compilers, as a compile log has them.",
        (
            *_WHOSE,
            _WHEN,
            Column("cache", "string", "fx graph, or aot autograd.", always=True),
            Column("result", "string", "hit, miss or bypass.", always=True),
            Column("key", "string", "Key that was looked up."),
            Column("reason", "string", "Why the cache was bypassed, or what exactly was missing."),
            Column("saved_ns", "int64", "What the hit saved, as torch estimates it."),
        ),
    ),
    StoredTable(
        "logged_graph_skips",
        "Regions for which no CUDA graph was made, as a compile log has them.",
        (
            *_WHOSE,
            _WHEN,
            Column("reason", "string", "Why.", always=True),
            Column("place", "string", "Line that led to it: file:line."),
        ),
    ),
    StoredTable(
        "logged_kernels",
        "Kernels that Inductor generated, with what they compute.",
        (
            *_WHOSE,
            _WHEN,
            Column("name", "string", "Name of the kernel.", always=True),
            Column("ops", "string", "Operators that it computes, as ATen names them."),
            Column("nodes", "string", "Nodes of the graph that it computes."),
            Column(
                "lines", "string", "Lines of the program that these came from, file:line with commas between."
            ),
            Column("code", "string", "Text of the first of these lines."),
            Column("configs", "int64", "Configurations that were timed for it."),
            Column("compile_ns", "int64", "How long its compilation took."),
        ),
    ),
    StoredTable(
        "logged_artifacts",
        "Everything else that a compile log holds, by name.",
        (
            *_WHOSE,
            Column("name", "string", "Name of the entry.", always=True),
            Column("entries", "int64", "How many.", always=True),
            Column("bytes", "int64", "Their text.", always=True),
        ),
    ),
)
"""In the order of their pages."""

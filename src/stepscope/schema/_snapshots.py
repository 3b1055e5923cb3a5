"""Side tables of an allocator's snapshot: what is reserved, what is in it, and what happened before."""

from __future__ import annotations

from stepscope.schema.events import Column, StoredTable

__all__ = ["SNAPSHOTS"]

_STACK = "Number of the Python and C++ frames behind it; NULL where none were recorded."

SNAPSHOTS = (
    StoredTable(
        "allocator_segments",
        "Segments that the caching allocator had reserved when a snapshot was taken.",
        (
            Column("segment", "int64", "Number of the segment.", always=True),
            Column("device", "int64", "Index of the device."),
            Column("address", "int64", "Where it begins."),
            Column("bytes", "int64", "Its size."),
            Column("allocated_bytes", "int64", "Of it in tensors, as the snapshot says."),
            Column("active_bytes", "int64", "Of it in tensors, or freed but still in use by a stream."),
            Column("requested_bytes", "int64", "What the program asked for, before rounding."),
            Column("stream", "int64", "Stream whose memory it is, as its address."),
            Column("kind", "string", "Pool: large, or small for requests up to 1 MiB."),
            Column("expandable", "int64", "1: it grows and shrinks (expandable_segments); NULL: unknown."),
            Column("pool", "string", "Private pool, such as that of a CUDA graph; 0, 0 is the common one."),
            Column("stack", "int64", _STACK),
        ),
    ),
    StoredTable(
        "allocator_blocks",
        "Blocks in those segments, in use and free.",
        (
            Column("segment", "int64", "Number of the segment.", always=True),
            Column("address", "int64", "Where it begins."),
            Column("bytes", "int64", "Its size, rounded up by the allocator.", always=True),
            Column("requested_bytes", "int64", "What the program asked for."),
            Column(
                "state", "string", "active_allocated; active_awaiting_free, or active_pending_free; inactive."
            ),
            Column("stack", "int64", _STACK),
        ),
    ),
    StoredTable(
        "allocator_events",
        "What the caching allocator did before a snapshot was taken, in order.",
        (
            Column("device", "int64", "Index of the device.", always=True),
            Column("nth", "int64", "Its place among those of the device, from 0.", always=True),
            Column(
                "action",
                "string",
                "alloc, free_requested, free_completed, segment_alloc and others.",
                always=True,
            ),
            Column("address", "int64", "Address of the block or segment."),
            Column("bytes", "int64", "Size that was asked for, of segments their size."),
            Column("stream", "int64", "Stream whose memory it is, as its address."),
            Column("start_ns", "int64", "When; NULL where it was not recorded."),
            Column("free_bytes", "int64", "Free on the device, for an allocation that failed."),
            Column("stack", "int64", _STACK),
            Column("compile_context", "string", "What torch.compile was compiling."),
            Column("user_metadata", "string", "What the program said with _set_memory_metadata."),
        ),
    ),
    StoredTable(
        "allocator_stacks",
        "The stacks of those events and blocks, innermost frame first.",
        (
            Column("stack", "int64", "Number of the stack.", always=True),
            Column("depth", "int64", "0 is the innermost frame.", always=True),
            Column("frame", "int64", "Number of the frame.", always=True),
        ),
    ),
    StoredTable(
        "allocator_frames",
        "The frames of those stacks.",
        (
            Column("frame", "int64", "Number of the frame.", always=True),
            Column("file", "string", "File, as the snapshot has it."),
            Column("line", "int64", "Line; 0 where it is unknown."),
            Column("function", "string", "Function."),
            Column("place", "string", "File from its package on, line and function.", always=True),
            Column(
                "origin", "string", "user, library, python (torch and Python itself) or native.", always=True
            ),
            Column("phase", "string", "The phase that it belongs to by itself; NULL for most."),
        ),
    ),
    StoredTable(
        "allocator_annotations",
        "Ranges that the program marked, as the snapshot has them.",
        (
            Column("device", "int64", "Index of the device."),
            Column("name", "string", "Name of the range."),
            Column("stage", "string", "START or END."),
            Column("start_ns", "int64", "When."),
        ),
    ),
    StoredTable(
        "memory_timeline",
        "What an exported memory timeline says: how the memory of each kind of tensor changed.",
        (
            Column("nth", "int64", "Its place in the file, from 0.", always=True),
            Column("start_ns", "int64", "When; NULL for what was there before the profile."),
            Column("action", "string", "there before, created, changed or freed.", always=True),
            Column("category", "string", "Kind of tensor, as the profiler told it.", always=True),
            Column("bytes", "int64", "How much more the kind takes from then on.", always=True),
        ),
    ),
)

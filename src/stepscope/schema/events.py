"""The stored tables: every file of a store, every column, and what it means.

The native reader is driven by these declarations: a column with a `key` is filled from that member of an
event, and everything an event says beyond its columns stays in its *skeleton*: the text of the event with
`null` in place of each value that went to a column. Skeletons are few, so nothing is lost and nothing is
kept twice.
"""

from __future__ import annotations

from stepscope.records import dataclass

__all__ = [
    "COMMUNICATION_KERNEL",
    "COMMUNICATION_RANGE",
    "COPIES",
    "DATALOADER_RANGE",
    "DEVICE_WORK",
    "DICTIONARIES",
    "EVERY_EVENT",
    "FILLS",
    "FORMAT",
    "HOST_OPS",
    "HOST_RUNTIME",
    "KERNELS",
    "METADATA_KEYS",
    "NOT_HOST",
    "OPTIMIZER_RANGE",
    "STANDS_STILL_NS",
    "STEP_MARK",
    "STORED",
    "WHOLE_GRAPH",
    "Column",
    "StoredTable",
    "native_tables",
]


FORMAT = 18
"""The number of this layout. A store with another one is made anew from its profile."""

KERNELS = ("kernel", "mtia_ccp_events", "Kernel")
COPIES = ("gpu_memcpy", "Memcpy")
FILLS = ("gpu_memset", "Memset")
DEVICE_WORK = (*KERNELS, *COPIES, *FILLS)
HOST_RUNTIME = (
    "cuda_runtime",
    "cuda_driver",
    "mtia_runtime",
    "xpu_runtime",
    "privateuse1_runtime",
    "Runtime",
)
HOST_OPS = ("cpu_op", "Operator")
NOT_HOST = (*DEVICE_WORK, "gpu_user_annotation", "cuda_sync", "cuda_event")
"""Categories that describe the device although some of them carry host-like threads."""

STANDS_STILL_NS = 1_000_000
"""Launched work that does not begin for so long, while nothing recorded runs on its device, waits for work
that was not recorded. A launch takes microseconds, or tens of them where a device has to be woken."""

# Names by which libraries mark what they do, as regular expressions.
STEP_MARK = r"ProfilerStep#\d+"
DATALOADER_RANGE = r"^enumerate\(Data(Loader|Pipe)\)#"
OPTIMIZER_RANGE = r"^Optimizer\.(step|zero_grad)#"
COMMUNICATION_RANGE = r"^(gloo|mpi|ucc):"
COMMUNICATION_KERNEL = (
    r"nccl|rccl|oneccl|nvshmem|deep[-_ ]?ep|cross[-_ ]?device[-_ ]?reduce|multimem|all[-_ ]?reduce|"
    r"all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?(to|2)[-_ ]?all"
)

WHOLE_GRAPH = "(as a whole: its kernels were not recorded)"
"""What ends the name of a replayed graph that a profile has as one piece of work."""

METADATA_KEYS = (
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "traceName",
    "trace_id",
    "INFO",
)
"""Keys of a trace's root that tell its header from an event when a file is damaged."""


@dataclass(frozen=True, slots=True)
class Column:
    """One stored column; `key` names the member of an event that fills it, in `args` unless `top`."""

    name: str
    type: str
    description: str
    key: str = ""
    top: bool = False
    always: bool = False
    """Never NULL."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """One stored table and the events that go there: of some categories and one phase, or of some phases."""

    name: str
    description: str
    columns: tuple[Column, ...]
    categories: tuple[str, ...] = ()
    phase: str = "X"
    phases: tuple[str, ...] = ()
    linked: tuple[Column, ...] = ()

    @property
    def read_columns(self) -> tuple[Column, ...]:
        """What every event has and what these events have, in the order in which the reader gives them."""
        return (*EVERY_EVENT, *self.columns)

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """The same, and what the sweeps found out."""
        return (*self.read_columns, *self.linked)


EVERY_EVENT = (
    Column("event", "int64", "Place of the event in the profile, from 0.", always=True),
    Column(
        "thread", "int32", "Its process and thread, or device and stream: a row of `threads`.", always=True
    ),
    Column("name", "int32", "Its name: a row of `names`."),
    Column("start_ns", "int64", "When it began, in ns after the trace's base time."),
    Column("dur_ns", "int64", "How long it took; NULL where the profile gives no duration."),
    Column("skeleton", "int32", "Everything else it says: a row of `skeletons`.", always=True),
)

_EXTERNAL = Column("external_id", "int64", "The profiler's number for the operator around it.", "External id")
_ORDER = Column("profiler_order", "int64", "Place in the profiler's own list of events.", "Ev Idx")
_CORRELATION = Column("correlation", "int64", "Number shared by a launch and its device work.", "correlation")
_RECORD = Column(
    "record_id", "int64", "The profiler's number of the recorded function.", "Record function id"
)

STORED = (
    StoredTable(
        "python_frames",
        "Calls of Python functions and of nn.Module objects (profiles recorded with stacks).",
        (
            Column("python_id", "int64", "The profiler's number of the call.", "Python id"),
            Column(
                "python_parent", "int64", "Number of the calling frame; NULL at the root.", "Python parent id"
            ),
            Column("module_id", "int64", "Which nn.Module object was called.", "Python module id"),
            _ORDER,
        ),
        categories=("python_function",),
    ),
    StoredTable(
        "ops",
        "Operators on the host.",
        (
            _EXTERNAL,
            _ORDER,
            _RECORD,
            Column(
                "sequence", "int64", "Autograd's number that ties backward to forward.", "Sequence number"
            ),
            Column(
                "forward_thread", "int64", "Thread of the forward operator, as torch counts.", "Fwd thread id"
            ),
        ),
        categories=HOST_OPS,
        linked=(
            Column("parent", "int64", "Event of the operator around it, among operators alone."),
            Column("depth", "int32", "How many operators are around it.", always=True),
            Column("self_ns", "int64", "Time in which it was the innermost operator.", always=True),
            Column(
                "self_no_runtime_ns",
                "int64",
                "The same without the runtime calls of its thread.",
                always=True,
            ),
            Column(
                "total_once_ns",
                "int64",
                "What it adds to the union of calls of its name on its thread.",
                always=True,
            ),
            Column(
                "device_self_ns",
                "int64",
                "Device work launched with it as the innermost operator.",
                always=True,
            ),
            Column(
                "device_once_ns",
                "int64",
                "Device work launched while it was the outermost of its name.",
                always=True,
            ),
        ),
    ),
    StoredTable(
        "launches",
        "Calls into the driver or runtime of a device: launches, copies, waits, allocations.",
        (_EXTERNAL, _CORRELATION),
        categories=HOST_RUNTIME,
        linked=(
            Column("op", "int64", "Event of the innermost operator when the call began."),
            Column("work_events", "int64", "How many pieces of device work it launched.", always=True),
            Column("work_ns", "int64", "Their summed duration.", always=True),
        ),
    ),
    StoredTable(
        "device_work",
        "What ran on a device: kernels, copies, fills.",
        (
            _EXTERNAL,
            _CORRELATION,
            Column("device", "int64", "Index of the device, where the profile says so.", "device"),
            Column("stream", "int64", "Stream it ran on.", "stream"),
            Column("context", "int64", "Context of the device.", "context"),
            Column("bytes", "int64", "Bytes copied or filled.", "bytes"),
            Column(
                "bandwidth_gb_s", "double", "Bandwidth as the profiler gives it.", "memory bandwidth (GB/s)"
            ),
            Column("graph_id", "int64", "Replayed graph it belongs to.", "graph id"),
            Column("graph_node_id", "int64", "Node in that graph.", "graph node id"),
        ),
        categories=DEVICE_WORK,
        linked=(
            Column("launch", "int64", "Event of the runtime call that launched it; NULL if there is none."),
            Column("op", "int64", "Event of the innermost operator at that launch."),
            Column(
                "recorded_ns",
                "int64",
                "How long the profile says it took, where that is impossible and `dur_ns` was clipped; "
                "NULL for all other work.",
            ),
        ),
    ),
    StoredTable(
        "annotations",
        "Ranges that people or libraries marked, on the host and as copied to the device.",
        (_EXTERNAL, _ORDER, _RECORD),
        categories=("user_annotation", "gpu_user_annotation"),
    ),
    StoredTable(
        "memory_events",
        "Allocations and frees (profiles recorded with profile_memory).",
        (
            Column("address", "int64", "Address of the block.", "Addr"),
            Column("bytes", "int64", "Size; negative for a free.", "Bytes"),
            Column("device_type", "int64", "0 host, 1 CUDA or ROCm.", "Device Type"),
            Column("device", "int64", "Index of the device; -1 for the host.", "Device Id"),
            Column("allocated_bytes", "int64", "Allocated on the device after this.", "Total Allocated"),
            Column("reserved_bytes", "int64", "Reserved by the allocator after this.", "Total Reserved"),
            _ORDER,
        ),
        categories=("cpu_instant_event",),
        phase="i",
    ),
    StoredTable(
        "flows",
        "Ends of arrows between events. Links are not made from these; see `device_work.launch`.",
        (Column("flow", "int64", "Number of the arrow.", "id", top=True),),
        phases=("s", "t", "f"),
    ),
    StoredTable(
        "gpu_samples",
        "State of a GPU while the program was recorded, as its driver told it about ten times a second.",
        (
            Column("device", "int64", "Index of the device.", "device"),
            Column("sm_clock_mhz", "int64", "Clock of the multiprocessors.", "sm_clock_mhz"),
            Column("max_sm_clock_mhz", "int64", "Highest clock that it has.", "max_sm_clock_mhz"),
            Column("memory_clock_mhz", "int64", "Clock of the memory.", "memory_clock_mhz"),
            Column("max_memory_clock_mhz", "int64", "Highest clock that it has.", "max_memory_clock_mhz"),
            Column("power_mw", "int64", "Power that it draws, in milliwatts.", "power_mw"),
            Column("power_limit_mw", "int64", "Power that it may draw.", "power_limit_mw"),
            Column("temperature_c", "int64", "Temperature in degrees Celsius.", "temperature_c"),
            Column(
                "utilization_share",
                "double",
                "Share of the last moments in which a kernel ran.",
                "utilization_share",
            ),
            Column(
                "memory_utilization_share",
                "double",
                "Share of the last moments in which memory was read or written.",
                "memory_utilization_share",
            ),
            Column(
                "link_generation", "int64", "Generation of PCIe at which its link runs.", "link_generation"
            ),
            Column("link_width", "int64", "Lanes at which its link runs.", "link_width"),
        ),
        categories=("gpu_sample",),
        phase="i",
    ),
    StoredTable(
        "collector_pauses",
        "Pauses in which Python's garbage collector ran and no Python code did.",
        (
            Column("generation", "int64", "Generation collected: 0 young, 2 everything.", "generation"),
            Column("collected", "int64", "Objects freed.", "collected"),
        ),
        categories=("collector_pause",),
    ),
    StoredTable(
        "other_events",
        "All other events: metadata, overhead, synchronisation records, spans.",
        (
            _EXTERNAL,
            _CORRELATION,
            Column("stream", "int64", "Stream it speaks of.", "stream"),
            Column("wait_on_stream", "int64", "Stream that was waited for.", "wait_on_stream"),
        ),
    ),
)
"""Large tables, in Parquet. The last one takes what no other asks for."""


def native_tables() -> list[tuple[str, list[tuple[str, bool, bool]]]]:
    """The stored tables as native code takes them: name, and for each column its key, in `args`, a double."""
    return [
        (table.name, [(column.key, not column.top, column.type == "double") for column in table.columns])
        for table in STORED
    ]


DICTIONARIES = (
    StoredTable(
        "names",
        "The distinct names of events.",
        (Column("id", "int32", "Number of the name."), Column("text", "string", "The name.")),
    ),
    StoredTable(
        "skeletons",
        "The distinct texts of events, null for each value that has a column, and what was counted for them.",
        (
            Column("id", "int32", "Number of the skeleton."),
            Column("text", "string", "The event as JSON."),
            Column("phase", "string", "Its phase: X complete, i instant, M metadata, s and f arrows."),
            Column("category", "string", "Its category as written; NULL without one."),
            Column("stored_in", "string", "The table its events are in."),
            Column("events", "int64", "How many events have it."),
            Column("total_ns", "int64", "Their summed duration."),
        ),
    ),
    StoredTable(
        "threads",
        "Processes and threads, or devices and streams, as the profile names them.",
        (
            Column("id", "int32", "Number of the thread."),
            Column("pid", "string", "Process or device."),
            Column("tid", "string", "Thread or stream."),
            Column("pid_json", "string", "The same as written in the profile."),
            Column("tid_json", "string", "The same as written in the profile."),
        ),
    ),
    StoredTable(
        "runs",
        "Where a thread's events lie: stretches of rows sorted by time.",
        (
            Column("stored_in", "string", "Table."),
            Column("row_group", "int32", "Row group of its file."),
            Column("thread", "int32", "Thread."),
            Column("first_row", "int64", "First row in the row group."),
            Column("rows", "int64", "How many rows."),
            Column("min_start_ns", "int64", "Earliest start."),
        ),
    ),
)
"""Small tables that every question needs, in Arrow IPC."""

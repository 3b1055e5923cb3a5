"""What calls into the runtime of a device do, by their names: wait, allocate, launch."""

from __future__ import annotations

from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.store.trace import Trace

__all__ = ["WAITING_CALLS", "WAITING_READS", "CallNames", "call_names"]

_COPIES = late_pattern(r"^(cuda|hip|cu|musa)Memcpy(?!.*(Async|Peer|DtoD|Batch))|^hipMemcpyWithStream")
_SYNCHRONISES = late_pattern(r"Synchroni[sz]e|^(ur|pi)(QueueFinish|Events?Wait)$")
# A plain free waits until the device has done all its work.
_FREES = late_pattern(
    r"^(cuda|hip|musa)(Free(Host)?|HostFree|HostUnregister)(_spt)?$|^cuMemFree(Host)?(_v2)?$"
)
_ALLOCATES = late_pattern(
    r"^(cuda|hip|musa)(Ext)?(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister|MemPoolTrim)"
    r"|^(cu|hip)Mem(Alloc|Free|Create|Release|Map|Unmap|SetAccess|Address(Reserve|Free)|HostAlloc|HostRegister"
    r"|HostUnregister|PoolTrim)|^zeMem(Alloc|Free)|^ur(USM\w+Alloc|USMFree)|^aclrt(Malloc|Free)"
)
_LAUNCHES = late_pattern(r"Launch|Memcpy|Memset|^ur?Enqueue|AppendMemory(Copy|Fill)")
_SYNCHRONISES_DEVICE = late_pattern(r"^(cuda|hip|musa)DeviceSynchronize$|^cuCtxSynchronize$")


@dataclass(frozen=True, slots=True)
class CallNames:
    """The names of a trace's runtime calls by what they do; a call may do several things."""

    waiting: list[str]
    """It returns when the device has done what it waits for."""
    freeing: list[str]
    """It frees memory, and waits for that until the device has done all its work."""
    allocating: list[str]
    """It gets memory from the driver or gives it back."""
    launching: list[str]
    """It asks the device to do something."""
    device_waiting: list[str]
    """It waits for the whole device, as the profiler itself does when it stops."""


def call_names(trace: Trace) -> CallNames:
    """Sorts the names of runtime calls; reads `name` of `launches`."""
    names = [name for name in trace.names_in("launches") if name]
    return CallNames(
        waiting=[name for name in names if _SYNCHRONISES.search(name) or _COPIES.search(name)],
        freeing=[name for name in names if _FREES.search(name)],
        allocating=[name for name in names if _ALLOCATES.search(name)],
        launching=[name for name in names if _LAUNCHES.search(name) and not _SYNCHRONISES.search(name)],
        device_waiting=[name for name in names if _SYNCHRONISES_DEVICE.search(name)],
    )


WAITING_READS = {
    "launches": ("event", "name", "thread", "start_ns", "dur_ns", "op", "work_events"),
    "device_work": ("launch", "name", "kind", "start_ns", "dur_ns", "bytes"),
}
"""What `WAITING_CALLS` reads."""

# A copy from or to pageable memory passes through a buffer of the driver. To the host it is done when the
# call returns; to the device nearly so, unless it fits the buffer (64 KiB) as a whole.
WAITING_CALLS = """
    SELECT l.event, l.name, l.thread, l.start_ns, coalesce(l.dur_ns, 0) AS dur_ns, l.op
    FROM launches l
    WHERE l.start_ns IS NOT NULL AND (
        list_contains($waiting, l.name)
        OR l.event IN (
            SELECT c.event FROM launches c JOIN device_work w ON w.launch = c.event
            WHERE w.kind = 'memcpy' AND contains(w.name, 'Pageable')
              AND CASE WHEN contains(w.name, '-> Pageable')
                       THEN c.start_ns + c.dur_ns >= w.start_ns + w.dur_ns
                       ELSE w.bytes > 65536 AND c.start_ns + c.dur_ns >= w.start_ns + w.dur_ns // 2 END))
"""
"""SQL of the calls that waited for the device, by their names or by what they copied; takes `$waiting`."""

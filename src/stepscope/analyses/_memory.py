"""What the analyses of memory share: which events count, how devices are called, and what steps are here."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from stepscope import units

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["COLUMNS", "DEVICE_NAME", "EVENTS", "STEPS", "STEP_COLUMNS", "missing", "parameters"]

COLUMNS = (
    "event",
    "name",
    "start_ns",
    "address",
    "bytes",
    "device_type",
    "device",
    "allocated_bytes",
    "reserved_bytes",
)

DEVICE_NAME = "CASE WHEN device_type = 0 THEN 'cpu' ELSE coalesce(device::VARCHAR, 'unknown') END"
"""SQL of what a device is called in these tables."""

# The totals are those of the allocator at that instant, whichever thread asked; so order is time, and the
# file decides between events of one instant. Host memory is not reserved: its total says 0 throughout.
EVENTS = f"""
    changes AS MATERIALIZED (
        SELECT {DEVICE_NAME} AS device_name,
               row_number() OVER (ORDER BY start_ns, event) AS nth,
               event, start_ns, address, bytes, allocated_bytes,
               CASE WHEN device_type <> 0 THEN reserved_bytes END AS reserved_bytes
        FROM memory_events
        WHERE name = '[memory]' AND start_ns IS NOT NULL AND bytes IS NOT NULL
          AND allocated_bytes IS NOT NULL)
"""
"""`changes`: every allocation (bytes > 0) and free (bytes < 0), in order, by the name of the device."""

STEP_COLUMNS = ("step", "source", "host_start_ns", "host_end_ns")
# Memory is asked for and given back on the host, so a step is here what lies between the ends of its mark.
STEPS = """
    marks AS MATERIALIZED (
        SELECT step, source, host_start_ns, host_end_ns,
               row_number() OVER (ORDER BY host_start_ns, step) AS place
        FROM steps),
    cuts AS (
        SELECT host_start_ns AS cut FROM marks UNION SELECT host_end_ns FROM marks
        UNION SELECT -9223372036854775807),
    names AS (SELECT DISTINCT device_name FROM changes),
    pieces AS (
        SELECT device_name, cut, max(nth) AS nth FROM changes ASOF JOIN cuts ON start_ns >= cut GROUP BY ALL),
    before AS MATERIALIZED (
        SELECT names.device_name, cut, max(nth) OVER (PARTITION BY names.device_name ORDER BY cut
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS nth
        FROM names CROSS JOIN cuts LEFT JOIN pieces USING (device_name, cut))
"""
"""`marks`: the steps on the host, in order; `before`: a device's last change before either end of a mark."""


def missing(trace: Trace) -> tuple[str, ...]:
    """The note of a trace that has no events of memory; nothing where it has."""
    sql = f"WITH {EVENTS} SELECT count(*) AS events FROM changes"
    found = trace.has("memory_events") and trace.once(
        "changes of memory", lambda: trace.rows(sql)[0]["events"]
    )
    return () if found else ("No events of memory: record with profile_memory=True.",)


# In a pass autograd goes from the latest operator of forward back to the earliest, so every new highest
# number begins another pass.
_GRADIENTS = """
    WITH gradients AS (SELECT args, start_ns FROM ops WHERE name = 'torch::autograd::AccumulateGrad'),
    first_step AS (
        SELECT min(host_start_ns) AS low, arg_min(host_end_ns, host_start_ns) AS high
        FROM gradients g ASOF JOIN steps ON g.start_ns >= host_start_ns WHERE g.start_ns < host_end_ns),
    numbered AS (
        SELECT sequence, max(sequence) OVER (ORDER BY start_ns, event
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
        FROM ops, first_step WHERE forward_thread > 0 AND start_ns >= low AND start_ns < high)
    SELECT args, count(*) AS tensors,
           (SELECT count(*) FROM numbered WHERE highest IS NULL OR sequence > highest) AS passes
    FROM gradients, first_step WHERE start_ns >= low AND start_ns < high GROUP BY args
"""
_ITEM_BYTES = {"double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2}
_BLOCK = 512  # an allocator of device memory rounds up to this


def parameters(trace: Trace) -> tuple[str, ...]:
    """How large the parameters are, where gradients of known shapes were accumulated; a line or none.

    Parameters are made before a profile begins, so no event of memory is theirs; a gradient is as large as
    the parameter it belongs to.
    """
    block = _BLOCK if len(trace.rows("SELECT 1 FROM memory_events WHERE device_type <> 0 LIMIT 1")) else 1
    rows = trace.rows(_GRADIENTS)
    tensors = total = 0
    for row in rows:
        said = json.loads(row["args"] or "{}")
        sizes, types = said.get("Input Dims"), said.get("Input type")
        if not sizes or not types or types[0] not in _ITEM_BYTES:
            return ()
        n_bytes = math.prod(sizes[0]) * _ITEM_BYTES[types[0]]
        tensors += row["tensors"]
        total += row["tensors"] * -(-n_bytes // block) * block
    if not tensors:
        return ()
    # Each pass of an accumulation gives every parameter a gradient.
    passes = max(rows[0]["passes"], 1)
    if any(row["tensors"] % passes for row in rows):
        passes = 1
    text = f"A backward pass gives {tensors // passes} gradients, {units.size(total // passes)} in all: "
    return (
        text + "so large are the parameters, if each gets one. They are alive before the profile begins.",
    )

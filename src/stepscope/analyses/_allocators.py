"""What analyses of allocator snapshots share: levels counted back, lifetimes, and whose code it was.

A history seldom begins with an empty device, and its rows say what was asked for, not what was given. So
levels are counted back from the blocks at the end: these have their true size, and what was freed before is
taken as rounded up the way the allocator rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.store.trace import Reads, Trace

__all__ = [
    "BLOCKS",
    "EVENTS",
    "FRAMES",
    "KINDS",
    "LEVELS",
    "LIFE_READS",
    "LIVES",
    "PINNED",
    "SEGMENTS",
    "SITES",
    "STACKS",
    "STATE",
    "STEPS",
    "has_history",
    "history_notes",
    "lives_sql",
    "missing",
    "rounding",
    "sql",
]

EVENTS = ("device", "nth", "action", "address", "bytes", "start_ns", "stack")
BLOCKS = ("segment", "address", "bytes", "requested_bytes", "state", "stack")
SEGMENTS = ("segment", "device", "bytes")
STACKS = ("stack", "depth", "frame")
FRAMES = ("frame", "function", "place", "origin", "phase")

STATE = """
    state AS MATERIALIZED (
        SELECT coalesce(device, 0) AS device, b.address, b.bytes, b.requested_bytes, b.stack,
               b.state = 'active_allocated' AS allocated, starts_with(b.state, 'active') AS active
        FROM allocator_blocks b JOIN allocator_segments USING (segment)),
    ends AS MATERIALIZED (
        SELECT device, coalesce(reserved_bytes, 0) AS reserved_bytes,
               coalesce(active_bytes, 0) AS active_bytes, coalesce(allocated_bytes, 0) AS allocated_bytes
        FROM (SELECT DISTINCT coalesce(device, 0) AS device FROM allocator_segments
              UNION SELECT DISTINCT device FROM allocator_events)
        LEFT JOIN (SELECT coalesce(device, 0) AS device, sum(bytes)::BIGINT AS reserved_bytes
                   FROM allocator_segments GROUP BY 1) USING (device)
        LEFT JOIN (SELECT device, sum(bytes) FILTER (active)::BIGINT AS active_bytes,
                          sum(bytes) FILTER (allocated)::BIGINT AS allocated_bytes
                   FROM state GROUP BY 1) USING (device))
"""
"""`state`: the blocks at the end; `ends`: the totals of each device at the end."""

_UNIT = 512
"""The allocator gives multiples of so many bytes."""


def rounding(trace: Trace) -> str:
    """SQL of the size that the allocator gives for `bytes`, as its settings say."""
    plain = f"greatest({_UNIT}, (bytes + {_UNIT - 1}) // {_UNIT} * {_UNIT})"
    settings = _told(trace).get("allocator_settings")
    steps = settings.get("roundup_power2_divisions") if isinstance(settings, dict) else None
    cases = []
    for megabytes, divisions in steps.items() if isinstance(steps, dict) else ():
        if isinstance(divisions, int) and 1 < divisions <= 64 and str(megabytes).isdigit():
            cases.append((int(megabytes), divisions))
    if not cases:
        return plain
    # The setting of a size is that of the largest power of two, in MiB, that is not above it.
    power = "(1::BIGINT << floor(log2(greatest(bytes, 1)))::INTEGER)"
    chosen = " ".join(
        f"WHEN greatest({power} >> 20, 1) >= {megabytes} THEN {divisions}"
        for megabytes, divisions in sorted(cases, reverse=True)
    )
    part = f"({power} // (CASE {chosen} ELSE 1 END))"
    finer = f"bytes > {_UNIT} * (CASE {chosen} ELSE 1 END) AND (CASE {chosen} ELSE 1 END) > 1"
    return f"(CASE WHEN {finer} THEN (bytes + {part} - 1) // {part} * {part} ELSE {plain} END)"


LEVELS = """
    asked AS MATERIALIZED (
        SELECT device, nth, action, address, start_ns, stack, bytes AS asked_bytes, {rounded} AS given_bytes,
               lead(action) OVER places AS next_action, lead(nth) OVER places AS next_nth,
               lead(stack) OVER places AS next_stack, lead(action, 2) OVER places AS second_action,
               lead(nth, 2) OVER places AS second_nth, lag(action) OVER places AS last_action
        FROM allocator_events
        WHERE action IN ('alloc', 'free_requested', 'free_completed') AND bytes >= 0 AND {history}
        WINDOW places AS (PARTITION BY device, address ORDER BY nth)),
    sized AS MATERIALIZED (
        SELECT asked.* EXCLUDE (given_bytes),
               CASE WHEN action = 'alloc' AND next_action IS NULL AND active THEN coalesce(state.bytes,
                   given_bytes)
                    ELSE given_bytes END AS bytes
        FROM asked LEFT JOIN (SELECT device, address, any_value(bytes) AS bytes, bool_or(active) AS active
                              FROM state GROUP BY device, address) state USING (device, address)),
    says AS (SELECT device, bool_or(action = 'free_requested') AS requests FROM asked GROUP BY device),
    deltas AS (
        SELECT device, nth, start_ns, CASE action WHEN 'alloc' THEN bytes WHEN 'free_completed' THEN -bytes
            ELSE 0
               END AS active, CASE action WHEN 'alloc' THEN bytes WHEN 'free_requested' THEN -bytes
               ELSE CASE WHEN requests THEN 0 ELSE -bytes END END AS allocated, 0 AS reserved
        FROM sized JOIN says USING (device)
        UNION ALL
        SELECT device, nth, start_ns, 0, 0, CASE WHEN action IN ('segment_alloc', 'segment_map') THEN bytes
               ELSE -bytes END
        FROM allocator_events
        WHERE action IN ('segment_alloc', 'segment_map', 'segment_free', 'segment_unmap') AND bytes >= 0
          AND {history}),
    levels AS MATERIALIZED (
        SELECT device, nth, start_ns,
               (active_bytes - sum(active) OVER whole + sum(active) OVER before)::BIGINT AS active_bytes,
               (allocated_bytes - sum(allocated) OVER whole + sum(allocated) OVER before)::BIGINT
                   AS allocated_bytes,
               (reserved_bytes - sum(reserved) OVER whole + sum(reserved) OVER before)::BIGINT AS
                   reserved_bytes
        FROM deltas JOIN ends USING (device)
        WINDOW whole AS (PARTITION BY device),
               before AS (PARTITION BY device ORDER BY nth ROWS UNBOUNDED PRECEDING)),
    starts AS MATERIALIZED (
        SELECT device, (active_bytes - coalesce(active, 0))::BIGINT AS active_bytes,
               (allocated_bytes - coalesce(allocated, 0))::BIGINT AS allocated_bytes,
               (reserved_bytes - coalesce(reserved, 0))::BIGINT AS reserved_bytes
        FROM ends LEFT JOIN (SELECT device, sum(active) AS active, sum(allocated) AS allocated,
                                    sum(reserved) AS reserved FROM deltas GROUP BY device) USING (device)),
    peaks AS MATERIALIZED (
        SELECT device, max(active_bytes) AS peak_bytes,
               arg_max(nth, row(active_bytes, -nth)) AS peak_nth
        FROM (SELECT device, nth, active_bytes FROM levels
              UNION ALL SELECT device, -1, active_bytes FROM starts) GROUP BY device)
"""
"""`levels`: what was in use and reserved after every event; `starts`: before the first; `peaks`: the most."""

LIVES = """
    lives AS MATERIALIZED (
        SELECT device, address, bytes, nth AS made_nth, start_ns AS made_ns, stack AS made_stack,
               CASE WHEN next_action <> 'free_requested' THEN next_nth
                    WHEN second_action = 'free_completed' THEN second_nth END AS freed_nth,
               CASE WHEN starts_with(next_action, 'free') THEN next_stack END AS freed_stack
        FROM sized WHERE action = 'alloc'
        UNION ALL
        SELECT device, address, bytes, NULL, NULL, NULL,
               CASE WHEN action = 'free_completed' THEN nth WHEN next_action = 'free_completed' THEN
                   next_nth END,
               stack
        FROM sized WHERE last_action IS NULL AND action <> 'alloc'
                     AND (action = 'free_completed' OR next_action IS NOT NULL)
        UNION ALL
        SELECT state.device, state.address, state.bytes, NULL, NULL, state.stack, NULL, NULL
        FROM state LEFT JOIN (SELECT DISTINCT device, address, true AS made FROM asked
                              WHERE next_action IS NULL AND action = 'alloc'
                                 OR action = 'alloc' AND next_action = 'free_requested' AND second_action IS
                                     NULL)
             USING (device, address)
        WHERE active AND made IS NULL)
"""
"""`lives`: every block from its allocation (NULL: before the history) to its end (NULL: still in use)."""

SITES = """
    known AS MATERIALIZED (
        SELECT frame, place, origin, phase, function = 'zero_grad' AS zeroes,
               function = 'forward' OR regexp_matches(place, '^torch/nn/modules/module\\.py.*_call_impl$')
                   AS forward,
               regexp_matches(place, '^torch/nn/modules/\\w+\\.py.*: forward$')
                   AND NOT regexp_matches(place, '^torch/nn/modules/(module|container)\\.py') AS is_module,
               regexp_matches(place, '^torch/optim/.*: (_init_group|_init_state|init_state)$') AS makes_state,
               regexp_matches(place, '^torch/nn/modules/\\w+\\.py.*: (__init__|_apply|reset_parameters)$'
                   || '|^torch/nn/init\\.py|: (load_state_dict|from_pretrained)$') AS sets_up,
               regexp_extract(place, '^torch::autograd::generated::(\\w+)::apply', 1) AS node,
               regexp_extract(place, '^at::_ops::(\\w+)::(?:call|redispatch)', 1) AS op,
               regexp_matches(place, '(?i)cublas\\w*workspace|cudnn\\w*workspace|workspace.*cu(blas|dnn)')
                   AS workspace
        FROM allocator_frames),
    sites AS MATERIALIZED (
        SELECT stack, nullif(arg_min(op, depth) FILTER (op <> ''), '') AS op,
               coalesce(arg_min(place, depth) FILTER (origin = 'user'),
                        arg_min(place, depth) FILTER (origin = 'library'),
                        arg_min(node, depth) FILTER (node <> ''),
                        arg_min(place, depth) FILTER (origin = 'python')) AS site,
               arg_min(place, depth) FILTER (is_module) AS module,
               coalesce(arg_min(phase, depth) FILTER (phase IS NOT NULL),
                        CASE WHEN bool_or(zeroes) THEN 'optimizer' WHEN bool_or(forward) THEN 'forward' END,
                        'other') AS phase,
               bool_or(zeroes) AS zeroes, bool_or(makes_state) AS makes_state, bool_or(sets_up) AS sets_up,
               bool_or(workspace) AS workspace
        FROM allocator_stacks JOIN known USING (frame) GROUP BY stack)
"""
"""`sites`: of every stack the innermost frame of the user's own code, the module, and the phase."""


# Where only Python frames were recorded, what has no stack ran in the thread of the autograd engine.
KINDS = """
    engine AS MATERIALIZED (
        SELECT CASE WHEN count(*) > 0 AND count(*) FILTER (origin = 'native') = 0 THEN 'backward' END AS
            engine_phase
        FROM allocator_frames),
    placed AS MATERIALIZED (
        SELECT device, nth, CASE phase WHEN 'recomputation' THEN 'backward' ELSE phase END AS phase
        FROM (SELECT device, nth, CASE WHEN stack IS NULL THEN engine_phase ELSE sites.phase END AS phase
              FROM allocator_events LEFT JOIN sites USING (stack) CROSS JOIN engine
              WHERE action IN ('alloc', 'free_requested', 'free_completed'))
        WHERE phase IN ('forward', 'backward', 'recomputation', 'optimizer') AND {history}),
    stretches AS MATERIALIZED (
        SELECT device, nth, phase, row_number() OVER (PARTITION BY device ORDER BY nth) AS stretch
        FROM (SELECT *, lag(phase) OVER (PARTITION BY device ORDER BY nth) AS before_phase FROM placed)
        WHERE phase IS DISTINCT FROM before_phase),
    lasts AS (SELECT device, max(stretch) AS last_stretch FROM stretches GROUP BY device),
    told AS (
        SELECT lives.*, m.site, m.module, m.op, coalesce(m.makes_state, false) AS makes_state,
               coalesce(m.sets_up, false) AS sets_up, coalesce(m.workspace, false) AS workspace,
               coalesce(m.phase, CASE WHEN made_nth IS NOT NULL THEN engine_phase END, 'other') AS phase,
               coalesce(f.phase, CASE WHEN freed_nth IS NOT NULL THEN engine_phase END, 'other') AS
                   freed_phase,
               coalesce(f.zeroes, false) AS zeroed, b.stretch AS made_in, e.stretch AS ended_in,
               coalesce(last_stretch > b.stretch, false) AS outlived
        FROM lives CROSS JOIN engine LEFT JOIN sites m ON m.stack = made_stack
        LEFT JOIN sites f ON f.stack = freed_stack
        LEFT JOIN lasts ON lasts.device = lives.device
        ASOF LEFT JOIN stretches b ON b.device = lives.device AND b.nth <= coalesce(made_nth, -1)
        ASOF LEFT JOIN stretches e ON e.device = lives.device AND e.nth <= coalesce(freed_nth, -1)),
    kinds AS MATERIALIZED (
        SELECT device, address, bytes, made_nth, made_ns, freed_nth, made_stack, site, module, op,
               CASE WHEN made_nth IS NULL AND made_stack IS NULL THEN 'before' ELSE phase END AS phase,
               CASE WHEN freed_nth IS NULL THEN 'kept' ELSE freed_phase END AS freed_in,
               CASE WHEN workspace THEN 'workspaces'
                    WHEN makes_state THEN 'optimizer state'
                    WHEN sets_up AND (freed_nth IS NULL OR made_nth IS NULL) THEN 'parameters'
                    WHEN made_nth IS NULL THEN CASE WHEN zeroed THEN 'gradients' ELSE 'unknown' END
                    WHEN freed_nth IS NULL THEN
                        CASE WHEN phase = 'backward' AND outlived THEN 'gradients'
                             WHEN phase = 'optimizer' AND outlived THEN 'optimizer state' ELSE 'unknown' END
                    WHEN phase IN ('forward', 'other') AND freed_phase IN ('backward', 'recomputation')
                        THEN 'activations'
                    WHEN phase = 'recomputation' AND freed_phase = 'backward' THEN 'activations'
                    WHEN phase <> 'other' AND freed_phase = phase AND ended_in IS NOT DISTINCT FROM made_in
                        THEN 'temporaries'
                    WHEN phase = 'backward' AND (freed_phase <> 'recomputation' OR ended_in > made_in)
                        THEN 'gradients'
                    ELSE 'unknown' END AS category
        FROM told)
"""
"""`kinds`: the same blocks with what they seem to be, and the lines of code that made them."""


# In expandable segments memory comes and goes in pages: of 20 MiB, in the pool of small requests of 2 MiB.
PINNED = """
    pages AS (
        SELECT segment, CASE kind WHEN 'small' THEN 2 << 20 ELSE 20 << 20 END AS page FROM
            allocator_segments),
    inside AS (
        SELECT b.segment, coalesce(sum(b.bytes) FILTER (starts_with(state, 'active')), 0)::BIGINT AS
            active_bytes,
               coalesce(sum(b.bytes) FILTER (state = 'inactive'), 0)::BIGINT AS free_bytes,
               coalesce(max(b.bytes) FILTER (state = 'inactive'), 0) AS largest_free_bytes,
               count(*) FILTER (starts_with(state, 'active')) AS blocks,
               arg_max({stack}, b.bytes) FILTER (starts_with(state, 'active')) AS stack,
               coalesce(sum(greatest(0, (b.address + b.bytes - s.address) // page
                   - (b.address - s.address + page - 1) // page) * page) FILTER (state = 'inactive'),
                       0)::BIGINT
                   AS page_bytes
        FROM allocator_blocks b JOIN allocator_segments s USING (segment) JOIN pages USING (segment)
        GROUP BY b.segment),
    pinned AS MATERIALIZED (
        SELECT coalesce(device, 0) AS device, address, kind, nullif(pool, '') AS pool, expandable, bytes,
               coalesce(inside.active_bytes, 0) AS active_bytes, coalesce(free_bytes, 0) AS free_bytes,
               coalesce(largest_free_bytes, 0) AS largest_free_bytes, coalesce(blocks, 0) AS blocks,
               coalesce(page_bytes, 0) AS page_bytes, inside.stack
        FROM allocator_segments LEFT JOIN inside USING (segment) WHERE bytes > 0)
"""
"""`pinned`: of every segment what is free, and what of that lies in whole pages."""

STEPS = """
    marked AS (
        SELECT CASE WHEN name LIKE 'ProfilerStep#%' THEN 'mark' ELSE 'optimizer' END AS source,
               regexp_extract(name, '#(\\d+)$', 1) AS number, stage, start_ns
        FROM allocator_annotations
        WHERE start_ns IS NOT NULL AND (name LIKE 'ProfilerStep#%' OR name LIKE 'Optimizer.step#%')),
    timed AS (
        SELECT 'mark' AS source, TRY_CAST(number AS BIGINT) AS step, min(start_ns) FILTER (stage = 'START')
            AS low,
               max(start_ns) FILTER (stage = 'END') AS high
        FROM marked WHERE source = 'mark' GROUP BY number
        UNION ALL
        SELECT 'trace', step, host_start_ns, host_end_ns FROM steps
        UNION ALL
        SELECT 'optimizer', row_number() OVER (ORDER BY start_ns) - 1,
               coalesce(lag(start_ns) OVER (ORDER BY start_ns), -1), start_ns
        FROM marked WHERE source = 'optimizer' AND stage = 'END'),
    devices AS (SELECT DISTINCT device FROM levels),
    begun AS (
        SELECT d.device, source, step, high, nth AS from_nth FROM timed CROSS JOIN devices d
        ASOF LEFT JOIN levels ON levels.device = d.device AND low > start_ns
        WHERE low IS NOT NULL AND high > low),
    by_time AS (
        SELECT begun.device, source, step, from_nth, nth AS to_nth FROM begun
        ASOF LEFT JOIN levels ON levels.device = begun.device AND high > start_ns),
    by_frames AS (
        SELECT device, 'frames' AS source, row_number() OVER (PARTITION BY device ORDER BY nth) - 1 AS step,
               coalesce(lag(nth) OVER (PARTITION BY device ORDER BY nth), -1) AS from_nth, nth AS to_nth
        FROM (SELECT device, lead(nth) OVER (PARTITION BY device ORDER BY nth) - 1 AS nth, phase FROM
            stretches)
        WHERE phase = 'optimizer' AND nth IS NOT NULL),
    candidates AS (
        SELECT device, source, step, coalesce(from_nth, -1) AS from_nth, to_nth FROM by_time
        WHERE to_nth > coalesce(from_nth, -1)
        UNION ALL SELECT * FROM by_frames),
    counted AS (SELECT device, source, count(*) AS steps FROM candidates GROUP BY device, source),
    best AS (
        SELECT device, arg_min(source, CASE source WHEN 'mark' THEN 0 WHEN 'trace' THEN 1 WHEN 'optimizer'
            THEN 2
               ELSE 3 END) AS source
        FROM counted WHERE steps >= 2 GROUP BY device),
    spans AS MATERIALIZED (
        SELECT device, step, replace(source, 'frames', 'optimizer') AS source, from_nth, to_nth
        FROM candidates JOIN best USING (device, source))
"""
"""`spans`: the steps of each device, as the events after `from_nth` up to `to_nth`."""


def _told(trace: Trace) -> dict[str, Any]:
    found = trace.meta.metadata.get("allocator_snapshot")
    return found if isinstance(found, dict) else {}


def missing(trace: Trace) -> tuple[str, ...]:
    """The note of a trace without a snapshot; nothing where it has one."""
    if "allocator_snapshot" in trace.meta.metadata:
        return ()
    return (
        (
            "No snapshot of the allocator: call torch.cuda.memory._record_memory_history() at the start and "
            "torch.cuda.memory._dump_snapshot('snapshot.pickle') at the end, and give that file."
        ),
    )


def has_history(trace: Trace) -> bool:
    """Whether levels can be counted back: there are events, and the last ones are not lost."""
    told = _told(trace)
    return bool(told.get("events")) and not told.get("cut")


LIFE_READS: Reads = {
    "allocator_events": EVENTS,
    "allocator_blocks": BLOCKS,
    "allocator_segments": SEGMENTS,
    "allocator_stacks": STACKS,
    "allocator_frames": FRAMES,
}
"""What `lives_sql` reads."""


def lives_sql(trace: Trace, *more: str) -> str:
    """When each block was made and freed, where, and what kind it is; and further parts."""
    return sql(trace, STATE, LEVELS, LIVES, SITES, KINDS, *more)


def sql(trace: Trace, *parts: str) -> str:
    """Some of the parts above as one WITH, for the settings of this snapshot."""
    text = ", ".join(parts)
    history = "TRUE" if has_history(trace) else "FALSE"
    return "WITH " + text.replace("{rounded}", rounding(trace)).replace("{history}", history)


def history_notes(trace: Trace) -> tuple[str, ...]:
    """What is to be known of the levels."""
    told = _told(trace)
    if told.get("cut"):
        return (
            "The snapshot is cut: its last events are lost, so nothing can be counted back from the end.",
        )
    if not told.get("events"):
        return (
            (
                "The snapshot has no history: only the state at the end is known. Call "
                "torch.cuda.memory._record_memory_history() before the program allocates."
            ),
        )
    return ()

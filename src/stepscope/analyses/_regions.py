"""What the analyses of compiled code share: how torch names its regions, and what marks its compilers."""

from __future__ import annotations

__all__ = ["COMPILERS", "NAMED", "OUTERMOST", "REGION", "REGION_NUMBER", "ROOTS", "TIMED"]

REGION = "name LIKE 'Torch-Compiled Region%'"
REGION_NUMBER = "regexp_extract(name, '^Torch-Compiled Region: (.*)$', 1)"
"""A run of compiled code. Its number is frame/version; the version counts recompilations, from 0."""

NAMED = ("event", "thread", "name", "start_ns", "dur_ns")

# torch marks its compilers with `… (dynamo_timed)`; some versions put plainer names around them. Triton by
# itself is known by its frames, and a capture by its calls. What measures kernels or captures a graph counts
# as that, wherever it is nested. LIKE is asked of names, a regular expression of every event.
_PLAIN = "'dynamo', 'entire_frame_compile', 'entire_backward_compile', 'backend_compile', 'inductor_compile'"
_TRITON = (
    r"(^|/)triton/(compiler/compiler\.py\(\d+\): compile|runtime/autotuner\.py\(\d+\): (_bench|benchmark))$"
)
_AUTOTUNING = r"benchmark|do_bench|utotuner\.coordinate_descent|_autotune\b|autotuner\.py"
_AT_ONCE_NS = 1_000_000
"""A graph that is instantiated so soon after its capture is made ready by the same call."""
COMPILERS = (
    r" \(dynamo_timed\)$|StreamBeginCapture|triton/"
    rf"|^({'|'.join(name.strip(chr(39)) for name in _PLAIN.split(', '))})$"
)
"""A regular expression of the names without which there is nothing in `timed`."""
TIMED = rf"""
    named AS (
        SELECT event, thread, name, start_ns, dur_ns FROM ops
        WHERE name LIKE '% (dynamo\_timed)' ESCAPE '\' OR name IN ({_PLAIN})
        UNION ALL
        SELECT event, thread, name, start_ns, dur_ns FROM annotations
        WHERE name LIKE '% (dynamo\_timed)' ESCAPE '\' AND category = 'user_annotation'
        UNION ALL
        SELECT event, thread, name, start_ns, dur_ns FROM python_frames
        WHERE name LIKE '%triton/%' AND regexp_matches(name, '{_TRITON}')
        UNION ALL
        SELECT event, thread, name, start_ns,
               if(made LIKE '%GraphInstantiate%' AND made_ns < until_ns + {_AT_ONCE_NS},
                  made_until_ns, until_ns) - start_ns
        FROM (
            SELECT *, lead(end_ns) OVER calls AS until_ns, lead(name, 2) OVER calls AS made,
                   lead(start_ns, 2) OVER calls AS made_ns, lead(end_ns, 2) OVER calls AS made_until_ns
            FROM (SELECT *, start_ns + coalesce(dur_ns, 0) AS end_ns FROM launches
                  WHERE name LIKE '%StreamBeginCapture%' OR name LIKE '%StreamEndCapture%'
                     OR name LIKE '%GraphInstantiate%')
            WINDOW calls AS (PARTITION BY thread ORDER BY start_ns))
        WHERE name LIKE '%BeginCapture%'),
    timed AS MATERIALIZED (
        SELECT event, thread, start_ns, start_ns + coalesce(dur_ns, 0) AS end_ns,
               CASE WHEN regexp_matches(name, '{_AUTOTUNING}') THEN 'autotuning'
                    WHEN regexp_matches(name, '^CUDAGraphNode.record|^cudagraphify|BeginCapture')
                    THEN 'capture'
                    ELSE 'compilation' END AS kind
        FROM named WHERE start_ns IS NOT NULL)
"""
"""`timed`: everything that compiles, times kernels or captures a graph, however nested."""
OUTERMOST = """
    SELECT * EXCLUDE (covered) FROM (
        SELECT *, max(end_ns) OVER (PARTITION BY thread ORDER BY start_ns, end_ns DESC, event
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered
        FROM timed {where})
    WHERE covered IS NULL OR start_ns >= covered
"""
"""The events of `timed` around which there is no other; `where` may choose among them first."""
ROOTS = f"""
    roots AS MATERIALIZED (
        SELECT *, lead(start_ns) OVER (PARTITION BY thread ORDER BY start_ns) AS next_ns
        FROM ({OUTERMOST.format(where="")}))
"""

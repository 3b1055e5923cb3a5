"""Every step, however it was found: prefill or decode, graph or eager, and what the host did in between."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._in_steps import (
    STEP_COLUMNS,
    WORK_COLUMNS,
    begun_in_steps,
    busy_of,
    steps_of,
    work_of,
)
from stepscope.analyses._serving import Load, load_of, together
from stepscope.analyses._windows import how_steps_were_found
from stepscope.costs.tensor_shapes import UnknownCostError, inputs_of
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Iteration", "iterations"]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One step, whatever tells it from the next."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step: Annotated[int, "Number in the mark, or counted from 0."]
    name: Annotated[str | None, "Name of what marks it."]
    source: Annotated[
        str, "How it was found: mark, annotation, optimizer, graph, period, or trace for the whole."
    ]
    start_ns: Annotated[int, "When the step began, host and device."]
    dur_ns: Annotated[int, "How long it took."]
    kind: Annotated[
        str | None,
        "Of serving: prefill, decode, mixed, draft (of speculation) or idle; NULL if unknown.",
    ]
    kind_basis: Annotated[str | None, "How the kind is known: annotation, shapes or kernels."]
    requests: Annotated[int | None, "Requests in the batch."]
    prefill_requests: Annotated[int | None, "Those of them whose prompt is being read."]
    tokens: Annotated[int | None, "Tokens that went in."]
    prefill_tokens: Annotated[int | None, "Those of them that belong to prompts."]
    context_tokens: Annotated[int | None, "Tokens attended to, summed over the requests."]
    host_gap_ns: Annotated[
        int | None, "From the end of the range before on the host; NULL where ranges only touch."
    ]
    busy_ns: Annotated[int, "Time of the step in which anything ran on a device."]
    idle_ns: Annotated[int, "The rest of the step."]
    launched_by: Annotated[
        str | None, "graph: at least 9/10 of the kernels' time is replayed graphs; eager: none; else mixed."
    ]
    graph_share: Annotated[float | None, "Share of the summed time of its kernels that is replayed graphs."]
    kernels: Annotated[int, "Kernels launched in it."]


MOSTLY_GRAPH = 0.9
_TOUCHING = ("optimizer", "graph", "period", "trace")

_RANGES = "SELECT name, start_ns FROM annotations WHERE category = 'user_annotation' AND phase = 'X'"
_ATTENTION_OPS = """
    SELECT start_ns, args FROM ops
    WHERE name IN ('aten::scaled_dot_product_attention', 'flash_attn::_flash_attn_forward')
"""
_DECODES = (
    "paged_?attention|split_?kv|BatchDecode|decode_attention|attention_decode|masked_multihead|mmha"
    "|mla_decode|flash_mla"
)
_READS_PROMPTS = "BatchPrefill|context_attention|prefill"
# Most names of kernels tell nothing: those that do are looked for among the names, not among the kernels.
_TELLING = f"""
    SELECT id, regexp_matches(text, '{_DECODES}', 'i') AS decodes,
           regexp_matches(text, '{_READS_PROMPTS}', 'i') AS prefills
    FROM names WHERE decodes OR prefills
"""
_ATTENTION_KERNELS = f"""
    SELECT l.start_ns, t.decodes, t.prefills
    FROM device_work w JOIN ({_TELLING}) t ON t.id = w.name_id
    JOIN launches l ON l.event = w.launch
"""


@analysis(
    reads={
        "steps": STEP_COLUMNS,
        **WORK_COLUMNS,
        "annotations": ("name", "category", "phase", "start_ns"),
        "ops": ("name", "start_ns", "args"),
    }
)
def iterations(trace: Trace) -> Table[Iteration]:
    """Lists steps, marked or found: prefill or decode, batch, host gap, graph or eager, kernels.

    The range names of vLLM, SGLang and ATOM give the load of an iteration. Without them, attention shows
    whether it is prefill or decode: one query for many keys, or kernels that only decode.
    """
    steps = steps_of(trace)
    loads = _loads(trace, steps)
    rows = [
        _row(trace.rank, step, before, load, work, busy)
        for step, before, load, work, busy in zip(
            steps, [None, *steps], loads, work_of(trace, steps), busy_of(trace, steps), strict=False
        )
    ]
    notes = how_steps_were_found(trace)
    return Table.of(Iteration, rows, notes or ([] if rows else ["The profile has no events."]))


def _row(
    rank: int,
    step: dict[str, Any],
    before: dict[str, Any] | None,
    load: tuple[Load, str | None],
    work: dict[str, int],
    busy: int,
) -> Iteration:
    said, basis = load
    share = work["graph_ns"] / work["kernel_ns"] if work["kernel_ns"] else None
    gap = None
    if before is not None and step["source"] not in _TOUCHING:
        gap = max(0, step["host_start_ns"] - before["host_end_ns"])
    return Iteration(
        rank=rank,
        step=step["step"],
        name=step["name"],
        source=step["source"],
        start_ns=step["start_ns"],
        dur_ns=step["end_ns"] - step["start_ns"],
        kind=said.kind,
        kind_basis=basis,
        requests=said.requests,
        prefill_requests=said.prefill_requests,
        tokens=said.tokens,
        prefill_tokens=said.prefill_tokens,
        context_tokens=said.context_tokens,
        host_gap_ns=gap,
        busy_ns=busy,
        idle_ns=step["end_ns"] - step["start_ns"] - busy,
        launched_by=None if share is None else _mode(share),
        graph_share=share,
        kernels=work["kernels"],
    )


def _mode(graph_share: float) -> str:
    return "graph" if graph_share >= MOSTLY_GRAPH else "mixed" if graph_share else "eager"


# ---------------------------------------------------------------- what kind it is


def _loads(trace: Trace, steps: list[dict[str, Any]]) -> list[tuple[Load, str | None]]:
    """The load of each step and what tells it: names first, then shapes, then names of kernels."""
    named = _named_loads(trace, steps)
    guessed = {} if all(load and load.kind for load in named) else _attention_loads(trace)
    found: list[tuple[Load, str | None]] = []
    for place, load in enumerate(named):
        if load and load.kind:
            found.append((load, "annotation"))
        elif place in guessed:
            other, basis = guessed[place]
            # What the name does say is better than what follows from shapes.
            found.append((Load(other.kind, load.requests) if load else other, basis))
        else:
            found.append((load or Load(), None))
    return found


def _named_loads(trace: Trace, steps: list[dict[str, Any]]) -> list[Load | None]:
    own = [load_of(step["name"]) for step in steps]
    inside: defaultdict[int, list[Load]] = defaultdict(list)
    if not all(own) and trace.has("annotations"):
        for row in begun_in_steps(trace, _RANGES, "e.name", "ORDER BY e.start_ns"):
            if load := load_of(row["name"]):
                inside[row["place"]].append(load)
    return [load or (together(inside[place]) if inside[place] else None) for place, load in enumerate(own)]


def _attention_loads(trace: Trace) -> dict[int, tuple[Load, str]]:
    """What attention tells of steps whose names tell nothing.

    Long queries alone may be an encoder or training: they are prompts only where the trace decodes as well.
    """
    loads: dict[int, tuple[Load, str]] = {}
    if not trace.may_have_name(f"(?i){_DECODES}|{_READS_PROMPTS}|attention|_flash_attn"):
        return loads
    calls = begun_in_steps(
        trace,
        _ATTENTION_OPS,
        "e.args, count(*) AS calls",
        "GROUP BY m.place, e.args ORDER BY m.place, calls DESC",
    )
    for row in calls:
        if (load := _attention_load(row["args"])) is not None:
            earlier = loads.get(row["place"])
            kind = load.kind if earlier is None or earlier[0].kind == load.kind else "mixed"
            loads[row["place"]] = (load if kind == load.kind else Load(kind), "shapes")
    for place, kind in _kinds_by_kernels(trace).items():
        loads.setdefault(place, (Load(kind), "kernels"))
    decodes = any(load.kind in ("decode", "mixed") for load, _ in loads.values())
    return loads if decodes else {}


def _kinds_by_kernels(trace: Trace) -> dict[int, str]:
    """What the names of attention kernels tell; most of them serve for prompts and for decoding alike."""
    if not trace.may_have_name(f"(?i){_DECODES}|{_READS_PROMPTS}"):
        return {}
    found = begun_in_steps(
        trace,
        _ATTENTION_KERNELS,
        "bool_or(e.decodes) AS decodes, bool_or(e.prefills) AS prefills",
        "GROUP BY m.place",
    )
    kinds = {(True, True): "mixed", (True, False): "decode", (False, True): "prefill"}
    return {row["place"]: kinds[row["decodes"], row["prefills"]] for row in found}


def _attention_load(args: str | None) -> Load | None:
    """Queries (batch, heads, length, size) and keys of one call; a length of 1 against more is decoding."""
    try:
        inputs = inputs_of(args)
        query, key = inputs.tensor(0).dims, inputs.tensor(1).dims
    except UnknownCostError:
        return None
    if len(query) != 4 or len(key) != 4:
        return None
    batch, queries, keys = query[0], query[2], key[2]
    if queries == 1 and keys > 1:
        return Load("decode", batch, 0, batch, 0, batch * keys)
    return Load("prefill", batch, batch, batch * queries, batch * queries, batch * keys)

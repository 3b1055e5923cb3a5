"""Single events that show what a finding speaks of: the longest of some kind in the steady steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepscope.analyses._every_gap import largest_gap
from stepscope.analyses._idle import CAUSES, SpentIn
from stepscope.costs.families import family_of
from stepscope.costs.precision import operands, precision_of
from stepscope.records import dataclass
from stepscope.schema import COMMUNICATION_KERNEL, KERNELS
from stepscope.simulation.simulator import is_cold
from stepscope.store.places import places_of

if TYPE_CHECKING:
    from stepscope.findings import Advice
    from stepscope.store.trace import Trace

__all__ = ["Instances", "Shown", "steady_steps"]

_TABLES = ("ops", "launches", "annotations", "python_frames", "other_events")
_HEAVY = ("matmul", "convolution", "attention")
_EVERYWHERE = [(-(1 << 62), 1 << 62)]


@dataclass(frozen=True, slots=True)
class Shown:
    """A stretch of time, in ns after the trace's base, and the event in it that matters."""

    start_ns: int
    end_ns: int
    track: int | None
    event: int | None
    what: str
    """`longest aten::item in a step`."""


def steady_steps(trace: Trace) -> tuple[list[dict[str, Any]], bool]:
    """All steps, and whether the first is a warm-up: the longest of several."""
    rows = trace.reading(None).rows(
        """SELECT step, name, source, start_ns, end_ns, host_start_ns, host_end_ns, thread AS track
           FROM stored.steps ORDER BY start_ns, end_ns, host_start_ns"""
    )
    return rows, bool(is_cold([row["end_ns"] - row["start_ns"] for row in rows]))


class Instances:
    """Looks for instances in the steady steps of a trace, and elsewhere only if there are none."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._asked = trace.reading(None)
        self._steps, self._cold = steady_steps(trace)
        kept = self._steps[self._cold :]
        self._device = [(row["start_ns"], row["end_ns"]) for row in kept]
        self._host = [(row["host_start_ns"], row["host_end_ns"]) for row in kept]

    # ------------------------------------------------ on the host

    def named(self, advice: Advice) -> tuple[Shown, ...]:
        """The operator or runtime call that its locations name, and what that launched."""
        names = [name for place in advice.locations for name in place.ops]
        names += [text for text in advice.evidence.values() if isinstance(text, str) and "::" in text]
        for name in names:
            found = self._call("n.text = $text", name, device=True)
            if found:
                return self._with_work(found)
        return ()

    def function(self, advice: Advice) -> tuple[Shown, ...]:
        """The function that its evidence names."""
        texts = [text for key, text in advice.evidence.items() if "function" in key and isinstance(text, str)]
        return self._frame(texts)

    def frames(self, advice: Advice) -> tuple[Shown, ...]:
        """The function that its first location is."""
        return self._frame([place.frame for place in advice.locations])

    def _frame(self, names: Sequence[str]) -> tuple[Shown, ...]:
        for name in names:
            found = self._call("n.text = $text", name)
            if found:
                return (self._shown(found),)
        return ()

    def calls(self, _: Advice, pattern: str) -> tuple[Shown, ...]:
        """The longest call whose name is like this."""
        found = self._call("regexp_matches(n.text, $text)", pattern)
        return (self._shown(found),) if found else ()

    def host_ops(self, _: Advice) -> tuple[Shown, ...]:
        """The longest operator that launched nothing."""
        found = self._call(
            "n.text LIKE $text AND t.device_once_ns = 0", "aten::%", tables=("ops",), by="self_ns"
        )
        return (self._shown(found),) if found else ()

    def phase(self, _: Advice, phase: str) -> tuple[Shown, ...]:
        """The longest operator of a phase."""
        inside = "t.event IN (SELECT event FROM stored.call_sites WHERE phase = $text)"
        found = self._call(inside, phase, tables=("ops",), device=True)
        return self._with_work(found) if found else ()

    def pauses(self, _: Advice) -> tuple[Shown, ...]:
        """The longest pause of the garbage collector."""
        found = self._call("n.text != $text", "", tables=("collector_pauses",))
        return (self._shown(found),) if found else ()

    def _call(
        self,
        where: str,
        text: str,
        tables: Sequence[str] = _TABLES,
        by: str = "dur_ns",
        *,
        device: bool = False,
    ) -> dict[str, Any] | None:
        """The longest event of the host, or the operator with the most device work."""
        for windows in (self._host, _EVERYWHERE):
            found = [
                row for table in tables for row in self._longest(table, where, text, windows, by, device)
            ]
            if found:
                return max(found, key=lambda row: (row["cost"], -row["event"]))
        return None

    def _longest(
        self, table: str, where: str, text: str, windows: list[tuple[int, int]], by: str, device: bool
    ) -> list[dict[str, Any]]:
        if not self._trace.has(table):
            return []
        # Work on the device weighs more than any time of the host.
        cost = "t.device_once_ns::HUGEINT * 1000000 + t.dur_ns" if device and table == "ops" else f"t.{by}"
        sql = f"""
            WITH windows AS (SELECT unnest($starts::BIGINT[]) AS low, unnest($ends::BIGINT[]) AS high)
            SELECT t.event, t.thread, t.start_ns, t.dur_ns, n.text AS name, ({cost})::DOUBLE AS cost
            FROM stored.{table} t JOIN stored.names n ON n.id = t.name
            WHERE {where} AND t.dur_ns > 0
              AND EXISTS (SELECT 1 FROM windows w WHERE t.start_ns >= w.low AND t.start_ns < w.high)
            ORDER BY cost DESC, t.start_ns, t.event LIMIT 1
        """
        starts, ends = [low for low, _ in windows], [high for _, high in windows]
        return self._asked.rows(sql, text=text, starts=starts, ends=ends)

    def _with_work(self, found: dict[str, Any]) -> tuple[Shown, ...]:
        """The longest work that a call launched, and the call."""
        work = self._asked.rows(
            """SELECT w.event, w.thread, w.start_ns, w.dur_ns, n.text AS name
               FROM stored.device_work w JOIN stored.launches l ON l.event = w.launch
               JOIN stored.names n ON n.id = w.name
               WHERE l.thread = $thread AND l.start_ns >= $start AND l.start_ns < $end
               ORDER BY w.dur_ns DESC, w.start_ns, w.event LIMIT 1""",
            thread=found["thread"],
            start=found["start_ns"],
            end=found["start_ns"] + found["dur_ns"],
        )
        call = self._shown(found)
        return (self._shown(work[0], f"work of {found['name']}"), call) if work else (call,)

    # ------------------------------------------------ on devices

    def kernels(self, _: Advice, family: str = "") -> tuple[Shown, ...]:
        """The longest kernel, of a family."""
        return self._work(lambda row: not family or family_of(row["name"], row["op"]) == family, family)

    def precision(self, advice: Advice, precisions: tuple[str, ...]) -> tuple[Shown, ...]:
        """The longest product that was computed in some data type."""
        families = {claim.part.value for claim in advice.claims if claim.part} & set(_HEAVY) or set(_HEAVY)

        def wanted(row: dict[str, Any]) -> bool:
            if family_of(row["name"], row["op"]) not in families:
                return False
            used = precision_of(row["name"], operands(row["op"], row["args"]).types).precision
            return used in precisions

        return self._work(wanted, f"product in {precisions[0]}")

    def unfilled(self, _: Advice) -> tuple[Shown, ...]:
        """The longest kernel with less than a block for each multiprocessor."""
        return self._work(
            lambda row: row["blocks"] is not None and 0 < row["blocks"] < 1, "that leaves units idle"
        )

    def _work(self, wanted: Any, what: str) -> tuple[Shown, ...]:
        """Of all kernels that are alike the longest; then the longest of those wanted."""
        for windows in (self._device, _EVERYWHERE):
            rows = [row for row in self._kernel_groups(windows) if wanted(row)]
            if rows:
                longest = max(rows, key=lambda row: (row["dur_ns"], -row["event"]))
                return (self._shown(longest, f"longest kernel {what}".strip()),)
        return ()

    def _kernel_groups(self, windows: list[tuple[int, int]]) -> list[dict[str, Any]]:
        def make() -> list[dict[str, Any]]:
            sql = f"""
                WITH windows AS (SELECT unnest($starts::BIGINT[]) AS low, unnest($ends::BIGINT[]) AS high),
                work AS (
                    SELECT t.event, t.thread, t.start_ns, t.dur_ns, n.text AS name, o.name AS op_name,
                           o.skeleton,
                           TRY_CAST(json_extract_string(s.text, '$.args."blocks per SM"') AS DOUBLE) AS blocks
                    FROM stored.device_work t JOIN stored.skeletons s ON s.id = t.skeleton
                    JOIN stored.names n ON n.id = t.name LEFT JOIN stored.ops o ON o.event = t.op
                    WHERE list_contains($kernels, s.category) AND t.dur_ns > 0
                      AND NOT regexp_matches(n.text, '{COMMUNICATION_KERNEL}', 'i')
                      AND EXISTS (SELECT 1 FROM windows w WHERE t.start_ns >= w.low AND t.start_ns < w.high)),
                alike AS (
                    SELECT name, op_name, skeleton, blocks,
                           arg_max({{'event': event, 'thread': thread, 'start_ns': start_ns,
                                     'dur_ns': dur_ns}}, (dur_ns, -event)) AS one
                    FROM work GROUP BY ALL)
                SELECT a.name, a.blocks, m.text AS op, (s.text->'$.args')::VARCHAR AS args, unnest(a.one)
                FROM alike a LEFT JOIN stored.names m ON m.id = a.op_name
                LEFT JOIN stored.skeletons s ON s.id = a.skeleton
            """
            starts, ends = [low for low, _ in windows], [high for _, high in windows]
            return self._asked.rows(sql, starts=starts, ends=ends, kernels=list(KERNELS))

        found: list[dict[str, Any]] = self._trace.once(("kernel groups", tuple(windows)), make)
        return found

    def work_like(self, _: Advice, pattern: str) -> tuple[Shown, ...]:
        """The longest kernel whose name is like this."""
        return self._moved("kernel", pattern, "longest such kernel")

    def copies(self, _: Advice, pattern: str) -> tuple[Shown, ...]:
        """The longest copy whose name is like this."""
        return self._moved("gpu_memcpy", pattern, "longest copy")

    def fills(self, _: Advice) -> tuple[Shown, ...]:
        """The longest fill."""
        return self._moved("gpu_memset", "", "longest fill")

    def collectives(self, _: Advice, pattern: str) -> tuple[Shown, ...]:
        """The longest collective."""
        return self._moved("kernel", pattern, "longest collective", COMMUNICATION_KERNEL)

    def _moved(self, category: str, pattern: str, what: str, also: str = "") -> tuple[Shown, ...]:
        sql = """
            WITH windows AS (SELECT unnest($starts::BIGINT[]) AS low, unnest($ends::BIGINT[]) AS high)
            SELECT t.event, t.thread, t.start_ns, t.dur_ns, n.text AS name
            FROM stored.device_work t JOIN stored.skeletons s ON s.id = t.skeleton
            JOIN stored.names n ON n.id = t.name
            WHERE s.category = $category AND regexp_matches(n.text, $pattern, 'i')
              AND regexp_matches(n.text, $also, 'i') AND t.dur_ns > 0
              AND EXISTS (SELECT 1 FROM windows w WHERE t.start_ns >= w.low AND t.start_ns < w.high)
            ORDER BY t.dur_ns DESC, t.start_ns, t.event LIMIT 1
        """
        for windows in (self._device, _EVERYWHERE):
            starts, ends = [low for low, _ in windows], [high for _, high in windows]
            given = {"category": category, "pattern": pattern, "also": also, "starts": starts, "ends": ends}
            found = self._asked.rows(sql, **given)
            if found:
                return (self._shown(found[0], what),)
        return ()

    # ------------------------------------------------ stretches

    def gap(self, _: Advice, causes: tuple[str, ...], drained: bool | None = None) -> tuple[Shown, ...]:
        """The gap that lost most to some causes, from the call that drained the queue to what ended it."""
        if not self._trace.has("device_work"):
            return ()
        numbers = [CAUSES.index(SpentIn(cause)) for cause in causes]
        for windows in (self._device, _EVERYWHERE):
            found = largest_gap(self._trace, numbers, windows, drained=drained)
            if found:
                return (self._gap(found),)
        return ()

    def _gap(self, found: dict[str, Any]) -> Shown:
        start, end = found["start_ns"], found["start_ns"] + found["idle_ns"]
        place = places_of(self._trace).known(found["drained"], ("launches",))
        if place is not None and place.start_ns is not None:
            return Shown(
                min(start, place.start_ns), end, place.thread, place.event, "idle after a blocking call"
            )
        after = places_of(self._trace).known(found["after"], ("device_work",))
        return Shown(
            start,
            end,
            after.thread if after else None,
            after.event if after else None,
            f"GPU {found['device']} idle",
        )

    def first_step(self, _: Advice) -> tuple[Shown, ...]:
        """The first step."""
        return self._step(self._steps[0]) if self._steps else ()

    def longest_step(self, _: Advice) -> tuple[Shown, ...]:
        """The longest of the steady steps."""
        rows = self._steps[self._cold :]
        return self._step(max(rows, key=lambda row: row["end_ns"] - row["start_ns"])) if rows else ()

    def _step(self, row: dict[str, Any]) -> tuple[Shown, ...]:
        return (Shown(row["start_ns"], row["end_ns"], row["track"], None, f"step {row['step']}"),)

    def peak(self, _: Advice) -> tuple[Shown, ...]:
        """When the memory of a device was fullest."""
        if not self._trace.has("memory_events"):
            return ()
        rows = self._asked.rows(
            """SELECT event, thread, start_ns FROM stored.memory_events
               WHERE device_type != 0 AND start_ns IS NOT NULL AND allocated_bytes IS NOT NULL
               ORDER BY allocated_bytes DESC, start_ns, event LIMIT 1"""
        )
        if not rows:
            return ()
        at = rows[0]["start_ns"]
        around = next((row for row in self._steps if row["host_start_ns"] <= at < row["host_end_ns"]), None)
        start, end = (around["host_start_ns"], around["host_end_ns"]) if around else (at, at + 1)
        return (Shown(start, end, rows[0]["thread"], rows[0]["event"], "most memory in use"),)

    def _shown(self, row: dict[str, Any], what: str = "") -> Shown:
        told = what or f"longest {row['name']}"
        return Shown(row["start_ns"], row["start_ns"] + row["dur_ns"], row["thread"], row["event"], told)

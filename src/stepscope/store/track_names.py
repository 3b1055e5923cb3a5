"""How people call the tracks of a trace: processes and threads of the host, devices and their streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.records import dataclass
from stepscope.schema import NOT_HOST

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["TrackName", "track_names"]

_OF_DEVICES = ", ".join(f"'{category}'" for category in NOT_HOST)


@dataclass(frozen=True, slots=True)
class TrackName:
    """What is known of a track before its events are looked at."""

    side: str
    group: str
    label: str


def track_names(trace: Trace) -> dict[int, TrackName]:
    """For each row of `threads` how it is called, and whether a device or the host works there."""
    devices = _device_threads(trace)
    processes, threads = _told_names(trace)
    found = {}
    for row in trace.rows("SELECT id, pid, tid, pid_json, tid_json FROM stored.threads"):
        key, pid, tid = row["id"], row["pid"] or "", row["tid"] or ""
        told = threads.get((row["pid_json"], row["tid_json"]), "").strip()
        process = processes.get(row["pid_json"], "").strip()
        if key in devices:
            group = f"GPU {pid}" if pid.isdigit() else process or pid
            label = f"stream {tid}" if tid.isdigit() else told or tid
            found[key] = TrackName("device", group, label)
        else:
            number = f"pid {pid}" if pid.isdigit() else pid
            group = f"{process} ({number})" if process else number
            found[key] = TrackName("host", group, told or (f"thread {tid}" if tid.isdigit() else tid))
    return found


def _device_threads(trace: Trace) -> set[int]:
    """Threads on which work of a device runs, or of which only a device tells something."""
    told = " UNION ".join(
        f"SELECT thread FROM stored.{table} t JOIN stored.skeletons s ON s.id = t.skeleton "
        f"WHERE s.category IN ({_OF_DEVICES})"
        for table in ("annotations", "other_events")
    )
    called = "SELECT thread FROM stored.runs WHERE stored_in IN ('python_frames', 'ops', 'launches')"
    works = "SELECT thread FROM stored.runs WHERE stored_in = 'device_work'"
    rows = trace.rows(f"(({told}) EXCEPT ({called})) UNION {works}")
    return {row["thread"] for row in rows}


def _told_names(trace: Trace) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """What the profile calls its processes, and its threads."""
    rows = trace.rows(
        """SELECT n.text AS what, h.pid_json, h.tid_json, json_extract_string(s.text, '$.args.name') AS called
           FROM stored.other_events t JOIN stored.skeletons s ON s.id = t.skeleton
           JOIN stored.names n ON n.id = t.name JOIN stored.threads h ON h.id = t.thread
           WHERE s.phase = 'M' AND n.text IN ('process_name', 'thread_name')"""
    )
    told = [row for row in rows if row["called"]]
    processes = {row["pid_json"]: row["called"] for row in told if row["what"] == "process_name"}
    threads = {
        (row["pid_json"], row["tid_json"]): row["called"] for row in told if row["what"] == "thread_name"
    }
    return processes, threads

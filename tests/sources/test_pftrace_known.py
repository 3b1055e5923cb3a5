"""Launches and GPU work of Perfetto traces that look like earlier ones, read quickly and the other way."""

from __future__ import annotations

from typing import Any

import pytest
from tests.protobuf import BASE, MEMCPY, MEMSET, Packets, fields_of, message
from tests.sources.test_pftrace_pieces import columns_of

ODD = (7, -3, 0, 10**17, 10**18, -(10**18), 10**19, "x", "", "07", "1 ", -(2**63))


def in_sequences_of_their_own(trace: Packets) -> bytes:
    """The same trace where nothing was learned of the sequence of a packet when it is read."""
    (_, interned) = next(one for one in fields_of(trace.interned()) if one[0] == 12)
    packets = trace.raw()[:1]
    for number, packet in enumerate(trace.packets, 2):
        fields = fields_of(packet)
        if any(field == 10 for field, _ in fields):
            packets.append(message((10, number), (12, interned), (13, 1)))
        packets.append(message(*((field, number if field == 10 else value) for field, value in fields)))
    return b"".join(message((1, packet)) for packet in packets)


def stage_of(trace: Packets, at: int, *fields: tuple[int, Any]) -> None:
    trace.add((8, BASE + at), (10, 1), (53, message(*fields)), (13, 2))


def extra(*fields: tuple[int, Any]) -> tuple[int, Any]:
    return (6, message(*fields))


def launches(trace: Packets, count: int, tied: bool = True) -> Packets:
    """Launches that name what they launched by its event, and some by their correlation."""
    for i in range(count):
        told = {"cbid": 211, "correlation": i * i} if tied or i % 3 else {"cbid": 211}
        category = ("cuda_runtime", "cuda_driver", "cpu_op")[i // 7 % 3]
        ids = [i, 1000 + i][: i % 3]
        trace.begin("cudaLaunchKernel", i * 20, 1, category, told, ids).end(i * 20 + 9)
    return trace


class TestKnown:
    @pytest.mark.parametrize("tied", [True, False])
    def test_launches(self, tied: bool) -> None:
        trace = launches(Packets().thread(1, 5, 5), 200, tied)
        for i in range(200):
            trace.stage(i, 5_000 + i * 20, 10, kernel="gemm", extra={"correlation": i * i} if i % 4 else {})
        found = columns_of(trace.trace())
        assert sum(len(rows) for rows in found.values()) == 400
        assert found == columns_of(in_sequences_of_their_own(trace))

    def test_work(self) -> None:
        trace = Packets().thread(1, 5, 5)
        for i in range(240):
            told = {"correlation": ODD[i // 2 % len(ODD)]}
            more: dict[str, Any] = {"device": i // 90, "stream": 7 + i % 2 * 13}
            kernel = f"gemm{i // 5 % 3}"
            trace.stage(i, i * 20, i % 7, kernel=kernel, name=kernel, grid=(i // 9, 2, 1), extra=told, **more)
            trace.stage(i, i * 20, 3, MEMCPY, extra={"bytes": 4096 + i // 8} | told, **more)
            trace.stage(i, i * 20, 3, MEMSET, extra=told | {"context id": i // 50, "note": "a"}, **more)
            trace.stage(i, i * 20, 3, 99, kernel="nobody's stage", extra=told, waits=(3, i // 60), **more)
        found = columns_of(trace.trace())
        assert sum(len(rows) for rows in found.values()) == 960
        assert found == columns_of(in_sequences_of_their_own(trace))

    def test_fields_in_any_order_and_number(self) -> None:
        trace = Packets().thread(1, 5, 5)
        twice = extra((1, "correlation"), (2, "5")), extra((2, "6"), (1, "correlation"))
        for i in range(60):
            tied = extra((1, "correlation"), (2, str(i)))
            for fields in (
                [(13, 107), (14, 1), tied, (2, i), (1, i)],
                [(1, i), (2, i), (14, 1), tied, tied],
                [(1, i), (2, i), (14, 2), *twice],
                [(1, i), (2, i), (14, 2), *reversed(twice)],
                [(1, i), (1, 3), (2, 4), (2, i), (14, 2), tied],
                [(1, i), (2, 1 << 62), (14, 2), tied],
                [(1, i), (14, 2), tied],
                [(1, i), (2, i), (3, 1), (4, 1), tied],
                [(1, i), (2, i), (14, 1), extra((1, "correlation"), (2, "4"), (2, str(i)))],
                [(1, i), (2, i), (14, 1), extra((1, "stream"), (2, str(i))), tied],
            ):
                stage_of(trace, i * 10, *fields)
        found = columns_of(trace.trace())
        assert sum(len(rows) for rows in found.values()) > 500
        assert found == columns_of(in_sequences_of_their_own(trace))

    @pytest.mark.parametrize("kind, table", [(1000, "kernels"), (24, "stages"), (2, "names")])
    def test_numbers_that_come_to_mean_something_else(self, kind: int, table: str) -> None:
        """Without a word that they are cleared: what comes later is what they mean then."""
        trace = Packets().thread(1, 5, 5)
        named: dict[str, Any] = (
            {"kernel": "gemm"} if table == "kernels" else {"name": "gemm"} if table == "names" else {}
        )
        for at, text in enumerate(("gemm", "other", "other", "gemm")):
            spelled = 3 if kind == 1000 else 2
            trace.add((10, 1), (12, message((kind, message((1, 1), (spelled, text))))), (13, 2))
            for i in range(3):
                trace.stage(i, at * 100 + i * 10, 5, extra={"correlation": i}, **named)
        names = [row[2] for rows in columns_of(trace.trace()).values() for row in rows]
        assert len(names) == 12
        assert names[:3] == names[9:] != names[3:6] == names[6:9]

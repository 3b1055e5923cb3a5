"""Writes small protobuf files for `make fuzz-packets`: Perfetto traces, and an XPlane file."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.protobuf import message
from tests.samples import DATA
from tests.sources.pftrace_files import drawn as drawn_packets
from tests.sources.pftrace_files import with_counters
from tests.sources.test_pftrace_known import launches
from tests.sources.test_xplane import drawn

import stepscope
from stepscope.exports.pftrace import pftrace

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "drawn.pftrace").write_bytes(with_counters().trace())
    launched = launches(drawn_packets(), 12)
    for i in range(12):
        launched.stage(i, i * 20, 10, kernel="gemm", extra={"correlation": i * i} if i % 3 else {})
    (folder / "launched.pftrace").write_bytes(launched.trace())
    # The reader of packets hands what is compressed to others; here it is taken as it is.
    inside = message((1, message((50, with_counters().trace()))))
    (folder / "packed.pftrace").write_bytes(inside + drawn_packets().trace() + inside)
    (folder / "drawn.xplane.pb").write_bytes(drawn())
    trace = stepscope.open(DATA / "h200_cuda_graph.pt.trace.json.gz", store=folder / "store")
    pftrace(trace, str(folder / "ours.pftrace"))

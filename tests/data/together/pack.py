"""Packs what record.sh wrote for this folder: everything stays but the folder of the program.

python -m tests.data.together.pack FOLDER_OF_RECORDINGS FOLDER_OF_THE_PROGRAM
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

HERE = Path(__file__).parent
PACKED = {
    "own/trace.json.gz": "trace.json.gz",
    "own/snapshot.pickle": "snapshot.pickle.gz",
    "own/memory.json": "memory.json.gz",
    "own/et.json": "execution_trace.json.gz",
    "own_torch_trace/*.log": "torch_trace.log.gz",
    "own.torch_logs.txt": "torch_logs.txt.gz",
    "ncu_raw.csv": "ncu_raw.csv.gz",
    "proton/proton.hatchet": "proton.hatchet.gz",
}


def main() -> None:
    """Writes the files."""
    recordings, program = Path(sys.argv[1]), sys.argv[2].encode()
    # As long as the old one: a pickle says before each text how long it is.
    neutral = (b"/home/me/" + b"project" * len(program))[: len(program)]
    for pattern, name in PACKED.items():
        (path,) = recordings.glob(pattern)
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        # torch's notes on guards leave out the first two letters of a path.
        text = text.replace(program, neutral).replace(program[2:], neutral[2:])
        (HERE / name).write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    main()

"""Brings the profiles of other hosts to the folder of rank 0, through the store of the process group.

Ranks that share a folder with rank 0 have nothing to bring. Nobody waits: files are sent in a thread when
they are written, and rank 0 takes what has come until its program ends.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.capture.run_folder import RankFile, merge

__all__ = ["Gathering"]

_PIECE = 1 << 20
_LOOK_S = 0.2
_LAST_S = 20.0
"""How long rank 0 waits at its end for what is still to come."""
_MOST_BYTES = 1 << 30
"""A rank sends no more than this: the store holds it in memory."""


class Gathering:
    """Sends the files of a rank, or takes those of the others."""

    def __init__(self, store: Any, key: str, file: RankFile, world_size: int) -> None:
        self._store = store
        self._key = key
        self._file = file
        self._expected = set(range(1, world_size))
        self._thread: threading.Thread | None = None
        self._deadline: float | None = None

    def send(self, until_written: Callable[[], None]) -> None:
        """Sends the files of this rank in a thread, once they are written."""

        def work() -> None:
            until_written()
            self._send_all()

        self._start(work)

    def take(self) -> None:
        """Takes the files of other ranks in a thread, as they come."""
        self._start(self._take_all)

    def says_it_is_here(self) -> None:
        """Tells rank 0 that this rank writes to the same folder."""
        self._store.set(f"{self._key}/{self._file.rank}", "[]")

    def end(self) -> None:
        """The program ends: waits a little for what is still on its way."""
        self._deadline = time.monotonic() + _LAST_S
        if self._thread is not None:
            self._thread.join(_LAST_S + 1)

    def _start(self, work: Callable[[], None]) -> None:
        # Python would wait for it without end, if it were no daemon.
        self._thread = threading.Thread(target=work, daemon=True, name="stepscope gathers")
        self._thread.start()

    def _send_all(self) -> None:
        rank = self._file.rank
        names = [one["path"] for one in self._file.told["files"]] + [f"rank{rank}.json"]
        sent, total = [], 0
        for name in names:
            content = (self._file.folder / name).read_bytes()
            total += len(content)
            if total > _MOST_BYTES:
                self._file.note(f"{name} stays on {os.uname().nodename}: it is too large to be gathered.")
                continue
            pieces = range(0, len(content), _PIECE)
            for number, at in enumerate(pieces):
                self._store.set(f"{self._key}/{rank}/{name}/{number}", content[at : at + _PIECE])
            sent.append((name, len(pieces)))
        self._store.set(f"{self._key}/{rank}", json.dumps(sent))

    def _take_all(self) -> None:
        while self._expected and (self._deadline is None or time.monotonic() < self._deadline):
            for rank in [one for one in self._expected if self._store.check([f"{self._key}/{one}"])]:
                self._expected.discard(rank)
                for name, pieces in json.loads(self._store.get(f"{self._key}/{rank}")):
                    self._take(rank, name, pieces)
                merge(self._file.folder)
            time.sleep(_LOOK_S)
        if self._expected:
            missing = ", ".join(map(str, sorted(self._expected)))
            self._file.note(f"The profiles of these ranks were not gathered: {missing}.")

    def _take(self, rank: int, name: str, pieces: int) -> None:
        path = self._file.folder / Path(name).name  # a name, wherever it says that it lies
        part = path.with_name(f".{path.name}.part")
        with part.open("wb") as file:
            for number in range(pieces):
                file.write(self._store.get(f"{self._key}/{rank}/{name}/{number}"))
        part.replace(path)

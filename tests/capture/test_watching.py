"""What is watched while a pass runs: real collections, and NVML as it is on this machine."""

from __future__ import annotations

import gc
import threading
import time

from stepscope.capture import nvml
from stepscope.capture.watching import CollectorWatch, Watch


def has_gpu() -> bool:
    try:
        with nvml.opened() as module:
            return bool(nvml.gpus(module, used=True))
    except nvml.NoNvml:
        return False


class TestCollector:
    def test_pauses_have_a_time_a_length_and_a_generation(self) -> None:
        watch = CollectorWatch()
        before = time.time_ns()
        watch.start()
        ring: list[object] = []
        ring.append(ring)
        del ring
        gc.collect()
        pauses, notes = watch.stop()
        full = [one for one in pauses if one["generation"] == 2]
        assert full
        assert notes == []
        assert before <= full[-1]["epoch_ns"] <= time.time_ns()
        assert 0 < full[-1]["dur_ns"] < 10_000_000_000
        assert full[-1]["collected"] >= 1

    def test_nothing_is_heard_before_and_after(self) -> None:
        watch = CollectorWatch()
        heard = len(gc.callbacks)
        gc.collect()
        watch.start()
        assert len(gc.callbacks) == heard + 1
        watch.stop()
        gc.collect()
        assert len(gc.callbacks) == heard
        assert watch.stop()[0] == []

    def test_a_pause_that_began_before_is_not_noted(self) -> None:
        watch = CollectorWatch()
        watch.start()
        watch._heard("stop", {"generation": 2, "collected": 0})
        assert watch.stop()[0] == []

    def test_what_is_too_much_is_counted(self) -> None:
        watch = CollectorWatch()
        watch.start()
        for _ in range(20_003):
            watch._heard("start", {})
            watch._heard("stop", {"generation": 0, "collected": 0})
        pauses, notes = watch.stop()
        assert len(pauses) == 20_000
        assert notes[0].startswith("The collector ran ")

    def test_listening_costs_little(self) -> None:
        """The two calls that a collection makes take microseconds, where the shortest takes about one."""
        watch = CollectorWatch()
        info = {"generation": 0, "collected": 0}
        best = float("inf")
        for _ in range(5):
            watch.start()
            began = time.perf_counter()
            for _ in range(1000):
                watch._heard("start", info)
                watch._heard("stop", info)
            best = min(best, (time.perf_counter() - began) / 1000)
            watch.stop()
        assert best < 20e-6


class TestWatch:
    def test_it_can_be_used_again_and_leaves_no_thread(self) -> None:
        watch = Watch(every_s=0.01)
        for _ in range(2):
            watch.start()
            watch.start()
            gc.collect()
            time.sleep(0.05)
            found = watch.stop()
            assert any(one["generation"] == 2 for one in found["collector_pauses"])
        assert watch.stop() == {"gpu_samples": [], "collector_pauses": [], "notes": []}
        assert not [one for one in threading.enumerate() if "stepscope" in one.name]

    def test_without_a_gpu_there_is_a_note_and_no_sample(self) -> None:
        watch = Watch(every_s=0.01)
        watch.start()
        time.sleep(0.05)
        found = watch.stop()
        if has_gpu():
            assert found["gpu_samples"][0]["device"] == 0
        else:
            assert found["gpu_samples"] == []
            assert len(found["notes"]) == 1
            assert "GPU" in found["notes"][0]

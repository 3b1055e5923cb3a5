"""The tables of what a rank file adds, on drawn traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.rank_files import BASE, CPU, GPU, LOADER, opened_with, pause, rank_document, sample

from stepscope.store import connection

# The device is idle from 50 to 110, until the launch at 100; the host is late from 50 to 100.
DRAWN = (
    Drawing(base_ns=BASE)
    .mark(1, 0, 90)
    .mark(2, 95, 105)
    .launch("cudaLaunchKernel", 12, 1, corr=7)
    .kernel("gemm", 20, 30, corr=7)
    .launch("cudaLaunchKernel", 100, 1, corr=8)
    .kernel("gemm", 110, 30, corr=8)
)
HOST = Drawing(base_ns=BASE).mark(1, 0, 90).op("aten::mm", 10, 20)
TABLES = ("collector_pauses", "gpu_health", "data_loaders", "run_settings")


def table(folder: Path, name: str, document: dict[str, Any], drawing: Drawing = DRAWN) -> Any:
    return opened_with(folder, drawing, document).table(name)


class TestWithoutARankFile:
    @pytest.mark.parametrize("name", TABLES)
    def test_a_note_says_why_it_is_empty(self, tmp_path: Path, name: str) -> None:
        found = opened_with(tmp_path, DRAWN, None).table(name)
        assert len(found) == 0
        assert "stepscope run" in found.notes[0]

    def test_it_costs_no_query(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        trace = opened_with(tmp_path, DRAWN, None)

        def asked(*given: Any) -> Any:
            raise AssertionError("a query")

        for name in ("fetch", "few", "run"):
            monkeypatch.setattr(connection, name, asked)
        for name in TABLES:
            trace.table(name)

    @pytest.mark.parametrize("name", TABLES)
    def test_what_a_profile_says_itself_under_that_key_does_not_count(
        self, tmp_path: Path, name: str
    ) -> None:
        drawing = Drawing(base_ns=BASE).mark(1, 0, 90).meta(stepscope_rank=rank_document())
        assert len(opened_with(tmp_path, drawing, None).table(name)) == 0


class TestCollectorPauses:
    def test_pauses_by_step_and_generation(self, tmp_path: Path) -> None:
        pauses = [
            pause(5, 10, 0, 1),  # before the device has anything to do
            pause(40, 20),  # 10 of it while the device waits
            pause(65, 5),  # all of it
            pause(99, 4, 1, 2),  # one of it before the launch
            pause(5_000, 50, 2, 3),  # in another pass
        ]
        found = table(tmp_path, "collector_pauses", rank_document(collector_pauses=pauses))
        rows = [
            (r.step, r.generation, r.pauses, r.total_ns, r.longest_ns, r.idle_ns, r.collected) for r in found
        ]
        assert rows == [
            (1, 0, 1, 10_000, 10_000, 0, 1),
            (1, 2, 2, 25_000, 20_000, 15_000, 20),
            (2, 1, 1, 4_000, 4_000, 1_000, 2),
            (None, 2, 1, 50_000, 50_000, 0, 3),
        ]

    def test_two_idle_devices_do_not_count_a_pause_twice(self, tmp_path: Path) -> None:
        two = Drawing(base_ns=BASE).mark(1, 0, 200)
        for device in (0, 1):
            for place, start in enumerate((20, 110)):
                two.launch("cudaLaunchKernel", start - 8, 1, corr=10 * device + place)
                two.kernel("gemm", start, 30, corr=10 * device + place, device=device)
        (row,) = table(tmp_path, "collector_pauses", rank_document(collector_pauses=[pause(60, 20)]), two)
        assert (row.total_ns, row.idle_ns) == (20_000, 20_000)

    def test_without_devices(self, tmp_path: Path) -> None:
        (row,) = table(tmp_path, "collector_pauses", rank_document(), HOST)
        assert (row.step, row.total_ns, row.idle_ns) == (1, 5_000, None)

    def test_a_collector_that_did_not_run(self, tmp_path: Path) -> None:
        found = table(tmp_path, "collector_pauses", rank_document(collector_pauses=[]))
        assert found.notes == ("The garbage collector did not run while the program was recorded.",)


class TestGpuHealth:
    def test_only_busy_samples_count(self, tmp_path: Path) -> None:
        samples = [
            *(sample(place, sm_clock_mhz=1900 + place) for place in range(4)),
            *(sample(9, "power cap", sm_clock_mhz=1500, power_mw=700_000) for _ in range(3)),
            sample(9, "software thermal slowdown", sm_clock_mhz=1000, temperature_c=90),
            sample(9, "idle", sm_clock_mhz=345, utilization_share=0.0, link_generation=1),
        ]
        (row,) = table(tmp_path, "gpu_health", rank_document(gpu_samples=samples))
        assert (row.device, row.name, row.samples, row.busy_samples) == (0, "NVIDIA H200", 9, 8)
        clocks = (row.sm_clock_mhz, row.min_sm_clock_mhz, row.max_sm_clock_mhz, row.top_sm_clock_mhz)
        assert clocks == ((4 * 1901.5 + 3 * 1500 + 1000) / 8, 1000, 1903, 1980)
        assert row.free_sm_clock_mhz == 1901.5
        assert row.power_w == (5 * 500 + 3 * 700) / 8
        assert (row.power_limit_w, row.default_power_limit_w, row.temperature_c) == (700, 700, 90)
        shares = (
            row.throttled_share,
            row.power_share,
            row.thermal_share,
            row.hardware_share,
            row.set_clock_share,
        )
        assert shares == (0.5, 0.375, 0.125, 0.0, 0.0)
        assert (row.link_generation, row.link_width, row.max_link_width) == (5, 16, 16)
        assert (row.nvlinks, row.numa_node, row.process_numa_nodes) == (18, 1, "1")

    def test_a_driver_that_tells_little(self, tmp_path: Path) -> None:
        bare = {"epoch_ns": BASE, "device": 0}
        (row,) = table(tmp_path, "gpu_health", rank_document(gpu_samples=[bare], environment={}))
        assert (row.samples, row.busy_samples, row.sm_clock_mhz, row.throttled_share) == (1, 1, None, 0.0)

    def test_without_samples_the_links_are_known_and_a_note_says_why(self, tmp_path: Path) -> None:
        environment = {"gpus": [GPU], "cpu": CPU, "unknown": {"gpus": "NVML does not start"}}
        found = table(tmp_path, "gpu_health", rank_document(gpu_samples=[], environment=environment))
        (row,) = found
        assert (row.samples, row.link_width, row.max_link_width, row.power_limit_w) == (0, 16, 16, 700)
        assert found.notes == ("No GPU was sampled while the program was recorded: NVML does not start.",)

    def test_only_the_gpus_that_were_used(self, tmp_path: Path) -> None:
        environment = {"gpus": [GPU, {**GPU, "device": 1}]}
        found = table(tmp_path, "gpu_health", rank_document(environment=environment))
        assert [row.device for row in found] == [0]


class TestDataLoaders:
    def test_settings_waits_and_cpus(self, tmp_path: Path) -> None:
        first = {**LOADER, "waited_ns_per_step": 5, "pin_memory": "yes"}
        rows = list(table(tmp_path, "data_loaders", rank_document(loaders=[first, LOADER])))
        assert [row.waited_ns for row in rows] == [2_000_000, 5]
        assert [row.pin_memory for row in rows] == [False, None]
        assert (rows[0].num_workers, rows[0].batch_size, rows[0].available_cpus) == (4, 32, 8.0)

    def test_without_one_a_note_says_so(self, tmp_path: Path) -> None:
        found = table(tmp_path, "data_loaders", rank_document(loaders=[7, "x"]))
        assert found.notes == ("The program took no batch from a DataLoader of torch.",)


class TestRunSettings:
    def test_names_values_and_meanings(self, tmp_path: Path) -> None:
        environment = {
            "torch": {"cudnn_benchmark": False, "new_switch": 5},
            "variables": {"OMP_NUM_THREADS": "8"},
            "topology": [{"devices": [0, 1], "path": "NUMA node"}, 5],
            "unknown": {"git": "not a git repository"},
        }
        found = table(tmp_path, "run_settings", rank_document(environment=environment))
        assert [(row.part, row.name, row.value, row.meaning is None) for row in found] == [
            ("variables", "OMP_NUM_THREADS", "8", False),
            ("torch", "cudnn_benchmark", "false", False),
            ("torch", "new_switch", "5", True),
            ("unknown", "git", "not a git repository", False),
            ("topology", "GPU 0 to 1", "NUMA node", False),
        ]

    def test_an_environment_that_is_none(self, tmp_path: Path) -> None:
        found = table(tmp_path, "run_settings", rank_document(environment="none"))
        assert found.notes == ("The rank file says nothing of the machine.",)

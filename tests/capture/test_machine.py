"""What the capture finds out about machine, versions and settings, asked in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stepscope.capture import nvml, processors, repository, torch_settings
from stepscope.capture.machine import environment

SECRETS = {
    "TORCH_HUB_TOKEN": "abc",
    "NCCL_AUTH": "abc",
    "CUDA_API_KEY": "abc",
    "PYTORCH_SECRET": "abc",
    "OMP_PASSWORD": "abc",
    "TRITON_PASSWD": "abc",
    "NCCL_PRIVATE_CERT": "abc",
    "torch_token": "abc",
    "TORCH_Session": "abc",
}
PLAIN = {
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "4",
    "MKL_NUM_THREADS": "4",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    "TRITON_CACHE_DIR": "/tmp/triton",
    "RANK": "3",
}
OTHERS = {
    "HOME": "/home/x",
    "AWS_ACCESS_KEY_ID": "AKIA",
    "HF_TOKEN": "hf",
    "MY_NCCL_DEBUG": "x",
    "PATH": "/bin",
}


def in_process(code: str, folder: Path, **variables: str) -> Any:
    """What a Python of its own prints as JSON."""
    env = {"PATH": "/usr/bin:/bin", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


class TestVariables:
    def test_those_that_matter_are_kept_and_no_others(self) -> None:
        assert torch_settings.variables({**PLAIN, **OTHERS}) == PLAIN

    @pytest.mark.parametrize("name", SECRETS)
    def test_a_name_that_suggests_a_secret_is_never_kept(self, name: str) -> None:
        assert torch_settings.variables({name: SECRETS[name]}) == {}

    @pytest.mark.parametrize(
        "value",
        [
            "http://me:hunter2@proxy:3128",
            "hf_abcdefghijklmnopqrstuvwxyz",
            "ghp_0123456789abcdefghij",
            "-----BEGIN RSA PRIVATE KEY-----",
        ],
    )
    def test_a_value_that_looks_like_a_secret_is_not_kept(self, value: str) -> None:
        assert torch_settings.variables({"NCCL_SOCKET_IFNAME": value}) == {}

    def test_a_long_value_is_cut(self) -> None:
        assert len(torch_settings.variables({"NCCL_X": "a" * 10_000})["NCCL_X"]) == 1000


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What is found in a program that sets switches, and once it has compiled something."""
    pytest.importorskip("torch")
    code = (
        "import json, time, torch\nfrom stepscope.capture.machine import environment\n"
        "torch.set_default_dtype(torch.float64)\ntorch.backends.cudnn.benchmark = True\n"
        "torch.use_deterministic_algorithms(True)\ntorch.set_float32_matmul_precision('high')\n"
        "torch.autograd.set_detect_anomaly(True)\ntorch.set_num_threads(1)\n"
        "began = time.perf_counter()\nfound = environment()\n"
        "found['took_s'] = time.perf_counter() - began\n"
        "found['started'] = torch.cuda.is_initialized()\n"
        "torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2))\n"
        "print(json.dumps([found, environment()]))"
    )
    return in_process(code, tmp_path_factory.mktemp("torch"))


class TestEnvironment:
    def test_it_is_json_and_says_why_something_is_missing(self) -> None:
        found = environment()
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert found["cpu"]["count"] >= 1
        assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
        for part in ("git", "gpus", "torch"):
            assert (part in found) != (part in found["unknown"])

    def test_without_torch_it_imports_none(self, tmp_path: Path) -> None:
        code = (
            "import json, sys\nfrom stepscope.capture.machine import environment\nfound = environment()\n"
            "found['imported'] = [one for one in ('torch', 'duckdb', 'pyarrow') if one in sys.modules]\n"
            "print(json.dumps(found))"
        )
        found = in_process(code, tmp_path, NCCL_DEBUG="INFO", NCCL_TOKEN="no")
        assert found["imported"] == []
        assert found["variables"] == {"NCCL_DEBUG": "INFO"}
        assert found["unknown"]["torch"] == "torch was not imported"
        assert "torch" not in found

    @pytest.mark.slow
    def test_the_switches_of_torch(self, of_torch: Any) -> None:
        found = of_torch[0]
        told = found["torch"]
        assert told["default_dtype"] == "float64"
        assert told["cudnn_benchmark"] is True
        assert told["deterministic_algorithms"] is True
        assert told["float32_matmul_precision"] == "high"
        assert told["anomaly_mode"] is True
        assert told["threads"] == 1
        assert told["compiles"] is False
        assert found["versions"]["torch"].startswith("2.")
        assert found["took_s"] < 1
        assert found["started"] is False

    @pytest.mark.slow
    def test_what_torch_compile_made_is_counted(self, of_torch: Any) -> None:
        told = of_torch[1]["torch"]
        assert told["compiles"] is True
        assert told["compiled_graphs"] == 1


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, timeout=60)


class TestRepository:
    def test_a_commit_and_what_was_changed_since(self, tmp_path: Path) -> None:
        git(tmp_path, "init")
        (tmp_path / "train.py").write_text("a\nb\nc\n")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-m", "first")
        clean = repository.repository(tmp_path)
        assert len(clean["commit"]) == 40
        assert (clean["dirty"], clean["changed_files"]) == (False, 0)
        (tmp_path / "train.py").write_text("a\nx\ny\nc\n")
        (tmp_path / "notes.txt").write_text("not tracked")
        changed = repository.repository(tmp_path)
        assert changed == {
            **clean, "dirty": True, "changed_files": 1, "inserted_lines": 2, "deleted_lines": 1
        }  # fmt: skip

    def test_outside_of_a_repository_the_reason_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(LookupError, match="not a git repository"):
            repository.repository(tmp_path)

    def test_a_git_that_hangs_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 30\n")
        (tmp_path / "git").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        began = time.monotonic()
        with pytest.raises(LookupError, match="longer than"):
            repository.repository(tmp_path)
        assert time.monotonic() - began < 5

    def test_without_git(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(LookupError, match="not installed"):
            repository.repository(tmp_path)


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


class TestLimitsOfContainer:
    def test_version_2(self, tmp_path: Path) -> None:
        root = machine(
            tmp_path,
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
                "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
                "sys/fs/cgroup/pod/box/memory.max": "8589934592\n",
                "sys/fs/cgroup/pod/memory.max": "max\n",
            },
        )
        assert processors.limits_of_container(root) == {"cpu_quota": 2.5, "memory_limit_bytes": 8 << 30}

    def test_version_1(self, tmp_path: Path) -> None:
        root = machine(
            tmp_path,
            {
                "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1073741824\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
        )
        assert processors.limits_of_container(root) == {"cpu_quota": 1.5, "memory_limit_bytes": 1 << 30}

    def test_no_limit_and_nothing_readable(self, tmp_path: Path) -> None:
        assert processors.limits_of_container(tmp_path) == {}
        root = machine(
            tmp_path,
            {
                "proc/self/cgroup": "0::/../../else\n2:cpu:/\n",
                "sys/fs/cgroup/cpu.max": "max 100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
        )
        assert processors.limits_of_container(root) == {}

    def test_a_quota_is_what_is_available(self, tmp_path: Path) -> None:
        files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}
        found = processors.processors(machine(tmp_path, files))
        assert (found["cpu_quota"], found["available"]) == (0.5, 0.5)


class TestNumaNodes:
    def test_cpus_of_each_node(self, tmp_path: Path) -> None:
        folder = "sys/devices/system/node"
        files = {f"{folder}/node0/cpulist": "0-1,4\n", f"{folder}/node1/cpulist": "2-3\n"}
        files |= {f"{folder}/node2/cpulist": "\n"}  # a node of memory alone
        assert processors.numa_nodes(machine(tmp_path, files)) == {0: {0, 1, 4}, 1: {2, 3}}

    @pytest.mark.parametrize("text", ["0-2,5", "7", "", "0-1,3-4"])
    def test_lists_are_read_and_written(self, text: str) -> None:
        assert processors.ranges_of(processors.cpus_in(text)) == text

    def test_what_is_no_list_is_none(self) -> None:
        assert processors.cpus_in("a-b,-,1-99999999999") == set()


def has_nvml() -> bool:
    try:
        with nvml.opened():
            return True
    except nvml.NoNvml:
        return False


class TestNvml:
    def test_reasons_in_words(self) -> None:
        assert nvml.reasons_of(0) == []
        assert nvml.reasons_of(0x4 | 0x40) == ["power cap", "hardware thermal slowdown"]

    @pytest.mark.skipif(has_nvml(), reason="there is one")
    def test_where_there_is_none_the_reason_is_told(self) -> None:
        with pytest.raises(nvml.NoNvml, match="NVML"), nvml.opened():
            pass

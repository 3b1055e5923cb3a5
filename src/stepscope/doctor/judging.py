"""From what was found to what it means: one check each, with what to type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepscope import units
from stepscope.doctor import Check, Checkup
from stepscope.doctor.asking import Answer
from stepscope.doctor.machine import Machine

__all__ = ["judged"]

_NEEDED_BYTES = 1_500_000_000
"""The plain JSON of the largest profile, and what stays free on a disk."""
_LITTLE_SHARED_BYTES = 1 << 30
_LEAST_TORCH = (2, 4)
_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
_MODPROBE = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | "
    "sudo tee /etc/modprobe.d/profiling.conf, then update-initramfs -u and reboot"
)


def judged(facts: Answer, record: Answer, machine: Machine, cache: str, python: str) -> Checkup:
    """Everything that was found, as checks."""
    told = facts.told
    categories: dict[str, int] = record.told.get("categories", {})
    records = bool(categories)
    records_devices = any(categories.get(name) for name in _DEVICE_WORK)
    checks = [
        *_python(facts, python),
        *_torch(told),
        *_device(told),
        *_profile(told, record),
        *_rights(machine, told, records_devices=records_devices),
        *_nvml(told),
        *_limits(machine),
        *_disks(machine),
        *_cache(cache),
        *_perf(machine),
    ]
    return Checkup(tuple(checks), records, records_devices)


def _python(facts: Answer, python: str) -> Iterator[Check]:
    if facts.problem:
        yield Check("Python", "no", f"{python}: {facts.problem}", "stepscope doctor --python PATH")
        return
    version = facts.told["python"]
    old = tuple(map(int, version.split(".")[:2])) < (3, 11)
    said = f"{version}, {facts.told['executable']}"
    if old:
        yield Check("Python", "no", f"{said}: stepscope needs 3.11 or later", "use a newer Python")
    else:
        yield Check("Python", "yes", said)


def _torch(told: dict[str, Any]) -> Iterator[Check]:
    if not told:
        return
    if told.get("torch") is None:
        said = f"cannot be imported: {told.get('torch_error')}"
        yield Check("torch", "no", said, f"{told['executable']} -m pip install torch")
        return
    version = str(told["torch"])
    built = _built(told)
    if _numbers(version) < _LEAST_TORCH:
        yield Check("torch", "no", f"{version}, {built}: 2.4 or later is needed", "pip install -U torch")
    else:
        yield Check("torch", "yes", f"{version}, {built}")
    if told.get("kineto"):
        names = ", ".join(told.get("activities", ())) or "none"
        yield Check("Kineto", "yes", f"the profiler is in this build; it knows {names}")
    else:
        said = told.get("kineto_error") or "this build of torch has no profiler"
        yield Check("Kineto", "no", said, "pip install torch, or build it with USE_KINETO=1")


def _built(told: dict[str, Any]) -> str:
    for name, word in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")):
        if told.get(name):
            return f"built for {word} {told[name]}"
    return "built for the CPU alone"


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` as (2, 13)."""
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def _device(told: dict[str, Any]) -> Iterator[Check]:
    if not told.get("torch"):
        return
    devices, is_built = told.get("devices") or [], told.get("cuda") or told.get("hip")
    if devices:
        names = ", ".join(f"{devices.count(name)} × {name}" for name in dict.fromkeys(devices))
        driver = told.get("driver_cuda")
        knows = f"; the driver knows CUDA {driver // 1000}.{driver % 1000 // 10}" if driver else ""
        yield Check("GPU", "yes", f"{names}{knows}")
    elif not is_built:
        has_driver = (told.get("nvml") or {}).get("works")
        fix = "install a build of torch for your GPU" if has_driver else ""
        yield Check("GPU", "unsure", "none for this build of torch: only the host is recorded", fix)
    else:
        why = told.get("device_error") or "torch sees none"
        yield Check("GPU", "no", f"none can be used: {why}", "nvidia-smi, and echo $CUDA_VISIBLE_DEVICES")


def _profile(told: dict[str, Any], record: Answer) -> Iterator[Check]:
    """What a real profile had in it."""
    if not told.get("torch"):
        return
    if record.problem:
        fix = "CUDA_VISIBLE_DEVICES= stepscope doctor, to see whether it is the GPU"
        yield Check("a test profile", "no", f"could not be recorded: {record.problem}", fix)
        return
    categories: dict[str, int] = record.told.get("categories", {})
    events = sum(categories.values())
    if not events:
        yield Check("a test profile", "no", "has no events", "unset KINETO_CONFIG KINETO_USE_DAEMON")
        return
    yield Check("a test profile", "yes", f"has {units.counted(events, 'event')}")
    if not record.told.get("devices"):
        return
    work = sum(categories.get(name, 0) for name in _DEVICE_WORK)
    if work:
        yield Check("GPU work in it", "yes", f"{units.count(work)} kernels and copies")
    else:
        yield _no_device_work(record.errors)


def _no_device_work(errors: str) -> Check:
    """Why kernels are missing, as far as the profiler says."""
    name = "GPU work in it"
    if "INSUFFICIENT_PRIVILEGES" in errors or "NVGPUCTRPERM" in errors:
        return Check(name, "no", "none: CUPTI is not permitted to this user", _MODPROBE)
    if "MULTIPLE_SUBSCRIBERS" in errors or "CUPTI_ERROR_HARDWARE_BUSY" in errors:
        return Check(name, "no", "none: another program uses CUPTI", "end nsys, ncu or DCGM, and try again")
    found = next((line.strip() for line in errors.splitlines() if "CUPTI" in line.upper()), "")
    said = f"none: {found}" if found else "none, and the profiler does not say why"
    return Check(name, "no", said, "KINETO_LOG_LEVEL=0 python -c '…', or another version of torch")


def _rights(machine: Machine, told: dict[str, Any], *, records_devices: bool) -> Iterator[Check]:
    """Who may profile, and who does."""
    for owner in machine.owners:
        if records_devices:
            yield Check("other profilers", "unsure", f"{owner} runs, and may get in the way", "end it if so")
        else:
            yield Check("other profilers", "no", f"{owner} may hold CUPTI", "end it, and try again")
    if not told.get("devices"):
        return
    if not machine.owners:
        yield Check("other profilers", "yes", "none is seen")
    if machine.admin_only and not machine.is_root:
        said = "GPU counters are for administrators"
        if records_devices:
            yield Check("CUPTI", "unsure", f"{said}: profiles work, ncu does not", _MODPROBE)
        else:
            yield Check("CUPTI", "no", said, _MODPROBE)
    elif machine.admin_only is not None:
        yield Check("CUPTI", "yes", "this user may profile the GPU")


def _nvml(told: dict[str, Any]) -> Iterator[Check]:
    """Clocks, power and temperature."""
    nvml = told.get("nvml") or {}
    if not told.get("devices") or told.get("hip"):
        return
    if nvml.get("works") and nvml.get("package"):
        yield Check(
            "NVML", "yes", f"driver {nvml.get('driver')}: clocks, power and temperature can be sampled"
        )
    elif nvml.get("works"):
        said = f"driver {nvml.get('driver')}, but Python has no package for it: no clocks, no temperature"
        yield Check("NVML", "unsure", said, f"{told['executable']} -m pip install nvidia-ml-py")
    else:
        said = f"does not answer ({nvml.get('error')}): no clocks, no temperature"
        yield Check("NVML", "unsure", said, "nvidia-smi")


def _limits(machine: Machine) -> Iterator[Check]:
    cpus = f"{units.counted(machine.cpus, 'CPU')}"
    if machine.cpu_limit is not None and machine.cpu_limit < machine.cpus:
        said = f"{units.tally(machine.cpu_limit)} of {cpus}, by a limit of the container"
        yield Check("CPUs", "unsure", f"{said}: loader workers beyond it only wait", "docker run --cpus …")
    else:
        yield Check("CPUs", "yes", cpus)
    limit, used = machine.memory_limit_bytes, machine.memory_used_bytes
    if limit is None:
        yield Check("memory", "yes", f"{units.size(machine.memory_bytes)}, no limit of a container")
    else:
        free = limit - (used or 0)
        state = "yes" if free > 2 * _NEEDED_BYTES else "unsure"
        fix = "" if state == "yes" else "docker run --memory …, or stepscope run --max-memory 1000"
        said = f"{units.size(limit)} by a limit of the container, {units.size(max(0, free))} free"
        yield Check("memory", "yes" if state == "yes" else "unsure", said, fix)
    shared = machine.shared_bytes
    if shared is not None and shared < _LITTLE_SHARED_BYTES:
        said = f"{units.size(shared)} free: batches of loader workers may not fit"
        yield Check("shared memory", "unsure", said, "docker run --shm-size 8g …")


def _disks(machine: Machine) -> Iterator[Check]:
    places = {"temporary files": machine.temporary_bytes, "this folder": machine.here_bytes}
    said = ", ".join(f"{units.size(free)} free for {name}" for name, free in places.items())
    roomy = [(free or 0) > _NEEDED_BYTES for free in places.values()]
    if all(roomy):
        yield Check("disk", "yes", said)
    elif any(roomy):
        yield Check("disk", "unsure", said, "TMPDIR=FOLDER, or stepscope run --out FOLDER on a larger disk")
    else:
        fix = "free 1.5 GB, or stepscope run --max-size 100"
        yield Check("disk", "no", f"{said}: a large profile needs 1.5 GB", fix)


def _cache(cache: str) -> Iterator[Check]:
    if cache:
        yield Check("cache", "unsure", cache, "STEPSCOPE_CACHE=FOLDER")
    else:
        yield Check("cache", "yes", "can be written to")


def _perf(machine: Machine) -> Iterator[Check]:
    """What samplers of the CPU need; profiles do without."""
    paranoid, scope = machine.perf_paranoid, machine.ptrace_scope
    if paranoid is not None:
        if paranoid <= 2 or machine.is_root:
            yield Check("perf", "yes", f"may sample your processes (perf_event_paranoid = {paranoid})")
        else:
            said = f"may not sample processes (perf_event_paranoid = {paranoid}); profiles do without"
            yield Check("perf", "unsure", said, "sudo sysctl kernel.perf_event_paranoid=1")
    if scope and not machine.is_root:
        said = f"py-spy and gdb cannot attach (ptrace_scope = {scope}); profiles do without"
        yield Check("ptrace", "unsure", said, "sudo sysctl kernel.yama.ptrace_scope=0")

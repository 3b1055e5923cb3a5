"""Runs in the Python that would run the program: says what its torch is, or records a tiny profile with it.

It is run as a file, by Pythons that may not have stepscope: the standard library and torch are all it uses.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from typing import Any

MARK = "stepscope-probe:"


def _facts() -> dict[str, Any]:
    """What can be said without recording."""
    told: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "nvml": _nvml(),
    }
    try:
        import torch
    except BaseException as error:  # noqa: BLE001  # whatever its import does
        return {**told, "torch": None, "torch_error": f"{type(error).__name__}: {error}"}
    told["torch"] = torch.__version__
    told["cuda"] = torch.version.cuda
    told["hip"] = getattr(torch.version, "hip", None)
    told["xpu"] = getattr(torch.version, "xpu", None)
    try:
        from torch.profiler import supported_activities

        told["activities"] = sorted(one.name for one in supported_activities())
        told["kineto"] = bool(torch.autograd.kineto_available())
    except Exception as error:  # noqa: BLE001
        told["kineto_error"] = f"{type(error).__name__}: {error}"
    try:
        torch.cuda.init()
        told["devices"] = [torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count())]
        told["driver_cuda"] = getattr(torch._C, "_cuda_getDriverVersion", int)()  # noqa: SLF001
    except Exception as error:  # noqa: BLE001
        told["devices"], told["device_error"] = [], f"{type(error).__name__}: {error}"
    return told


def _nvml() -> dict[str, Any]:
    """Whether NVML answers: by the package that the capture uses, or at least by the driver's library."""
    try:
        pynvml: Any = __import__("pynvml")

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except ImportError:
        return _nvml_library()
    except Exception as error:  # noqa: BLE001
        return {"package": True, "works": False, "error": str(error)}
    return {
        "package": True,
        "works": True,
        "driver": version if isinstance(version, str) else version.decode(),
    }


def _nvml_library() -> dict[str, Any]:
    import ctypes

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        code = library.nvmlInit_v2()
        text = ctypes.create_string_buffer(96)
        library.nvmlSystemGetDriverVersion(text, 96)
    except (OSError, AttributeError) as error:
        return {"package": False, "works": False, "error": str(error)}
    return {"package": False, "works": code == 0, "driver": text.value.decode(), "error": f"NVML {code}"}


def _recorded() -> dict[str, Any]:
    """Which categories a tiny profile has, with how many events each."""
    import torch
    from torch.profiler import profile

    def work(device: str) -> float:
        numbers = torch.ones(64, 64, device=device)
        for _ in range(3):
            numbers = numbers @ numbers / 64
        return float(numbers.sum())

    devices = ["cuda"] if torch.cuda.is_available() else []
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        devices.append("xpu")
    for device in ["cpu", *devices]:
        work(device)
    with profile() as recording:
        for device in ["cpu", *devices]:
            work(device)
    folder = tempfile.mkdtemp(prefix="stepscope-doctor-")
    path = os.path.join(folder, "trace.json")  # noqa: PTH118
    try:
        recording.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            events = json.load(file)["traceEvents"]
    finally:
        if os.path.exists(path):  # noqa: PTH110
            os.remove(path)  # noqa: PTH107
        os.rmdir(folder)  # noqa: PTH106
    found: dict[str, int] = {}
    for event in events:
        kind = event.get("cat")
        if event.get("ph") == "X" and kind:
            found[kind] = found.get(kind, 0) + 1
    return {"categories": found, "devices": devices}


if __name__ == "__main__":
    answer = _recorded() if sys.argv[1:] == ["record"] else _facts()
    sys.stdout.write("\n" + MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # what libraries do at their end is not asked for

"""Fixtures for all tests: real profiles, and torch. Which tests go together, how often they try."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.analyses.oddities import ODDITIES
from tests.answers import keep_answers
from tests.samples import DATA, KEPT, SAMPLES, stem
from tests.trying import EXHAUSTIVE, QUICK

ROOT = Path(__file__).parent.parent
TORCH_PYTHON = (3, 11)
"""The one Python that the tests install torch on; see the dependency group in pyproject.toml."""


@dataclass
class SampleChecks:
    """Which tests had their real profile and which had none."""

    ran: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)


CHECKS = pytest.StashKey[SampleChecks]()
BEGUN = pytest.StashKey[float]()
SLOW_S = 1.0
"""A test that takes longer on an idle core, everything included, is marked `slow`."""
NAMES = {*map(stem, DATA.rglob("*.json.gz")), *map(stem, SAMPLES), *ODDITIES}
PROFILES = re.compile(rf"\b({'|'.join(re.escape(name) for name in sorted(NAMES, key=len, reverse=True))})\b")

# A slow machine is no failure. The quick tests try the same examples every time, the exhaustive ones others.
settings.register_profile(
    "exhaustive", max_examples=EXHAUSTIVE, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "quick", settings.get_profile("exhaustive"), max_examples=QUICK, derandomize=True, database=None
)
settings.load_profile("quick")


# What a shell starts in the background ignores Ctrl-C; programs that tests interrupt are not to inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a terminal, a shell or a job of continuous integration has set is not for the tests.
for setting in (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "GITHUB_STEP_SUMMARY",
    "STEPSCOPE_CACHE_LIMIT",
):
    os.environ.pop(setting, None)
os.environ["STEPSCOPE_CACHE"] = str(KEPT / "cache")
# Kineto reads this when a process first uses the profiler; later the capture could not quiet it any more.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CHECKS] = SampleChecks()


def group_of(nodeid: str) -> str:
    """What tests go together: those that look at one profile, which is open then, and others of one file."""
    file, _, name = nodeid.partition("::")
    if "/web/" in file:
        return "web"  # they share a browser and a window
    found = PROFILES.search(name.partition("[")[2])
    if found:
        return found[0]
    return "verdicts" if "/verdicts/" in file else file  # several files about the same few profiles


@pytest.hookimpl(trylast=True)  # when those that nobody wants are gone
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a run in parallel, the longest groups come first: at its end no process waits for another."""
    if hasattr(config, "workerinput"):
        slow = Counter(group_of(item.nodeid) for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[group_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands tests to processes group by group, in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # many tests are no long ones

    class ByProfile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByProfile(config, log)


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of real profiles: $STEPSCOPE_SAMPLES, or `shared/data` beside the repository."""
    return Path(os.environ.get("STEPSCOPE_SAMPLES") or ROOT.parent / "shared" / "data")


@pytest.fixture
def sample(samples: Path, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Finds a real profile by its name; a test whose file is not there is skipped, and counted."""
    checks = request.config.stash[CHECKS]

    def find(name: str) -> Path:
        path = samples / name
        if not path.exists():
            checks.ran.discard(request.node.nodeid)
            checks.missing.add(request.node.nodeid)
            pytest.skip(f"no sample {name}")
        checks.ran.add(request.node.nodeid)
        return path

    return find


@pytest.fixture(scope="module")
def answers_kept() -> Iterator[None]:
    """For tests of what is made of a report or a table; see tests/answers.py."""
    with pytest.MonkeyPatch.context() as patch:
        keep_answers(patch)
        yield


@pytest.fixture(scope="session")
def torch() -> Any:
    """The module torch. Without it a test fails where it should be there, and is skipped elsewhere."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("torch")
    except ImportError as error:
        if sys.version_info[:2] == TORCH_PYTHON:
            pytest.fail(f"this test needs torch, and {error}: run `make test`, or pip install --group torch")
        pytest.skip("torch is installed on Python {}.{} only".format(*TORCH_PYTHON))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds up what the processes of a run in parallel found; each tells it when it ends."""
    checks = node.config.stash[CHECKS]
    told = getattr(node, "workeroutput", {})  # a process that crashed has told nothing
    checks.ran |= set(told.get("ran", ()))
    checks.missing |= set(told.get("missing", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    checks = session.config.stash[CHECKS]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput |= {"ran": sorted(checks.ran), "missing": sorted(checks.missing)}


def cpu_s() -> float:
    """What this process and its children have used of all cores so far."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[BEGUN] = cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "teardown":
        slow = any(item.get_closest_marker(name) for name in ("slow", "exhaustive"))
        report.cpu = (cpu_s() - item.stash[BEGUN], slow)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    checks = config.stash[CHECKS]
    terminalreporter.write_line(
        f"samples: {len(checks.ran)} checks ran, {len(checks.missing)} had no file",
        yellow=bool(checks.missing),
    )
    told = [report for report in terminalreporter.getreports("") if hasattr(report, "cpu")]
    terminalreporter.write_line(f"processor time: {sum(report.cpu[0] for report in told):,.0f} s")
    # How fast a machine is is no property of the code: this is said and never fails.
    unmarked = sorted((-report.cpu[0], report.nodeid) for report in told if not report.cpu[1])
    for negative, nodeid in unmarked[:10]:
        if -negative > SLOW_S:
            terminalreporter.write_line(f"{-negative:6.1f} s of processor time, not marked slow: {nodeid}")

"""`stepscope open` as people use it: runs, ranks, pipes, wrong inputs, Ctrl-C, several windows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.commands import DATA, SLOW_ITEM, STEPSCOPE, environment, leftovers, said, stepscope
from tests.web.windows import Window, window

from stepscope.cli.traces import DEMO

pytestmark = pytest.mark.slow
OPEN = [*STEPSCOPE, "open", "--no-browser"]


@pytest.mark.parametrize("word", ["no.json", "empty.json", "page.html"])
def test_a_wrong_input_is_told_with_an_exit_code(tmp_path: Path, word: str) -> None:
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "page.html").write_text("<html>", encoding="utf-8")
    done = stepscope("open", "--no-browser", tmp_path / word, cache=tmp_path / "cache")
    # On a slow machine the address is printed before it is known that there is nothing behind it.
    assert done.returncode == 1
    assert re.search(r"^stepscope: .+\n  hint: .+\n\Z", done.stderr, re.MULTILINE)


def test_usage_is_told(tmp_path: Path) -> None:
    for words in ([], ["x", "--demo"], ["--demo", "--perfetto", "--page", "kernels"]):
        assert stepscope("open", *words, cache=tmp_path).returncode == 2


def test_a_port_in_use_is_told(demo: Window, tmp_path: Path) -> None:
    done = stepscope("open", "--demo", "--no-browser", "--port", demo.port, cache=tmp_path)
    assert "cannot listen" in said(done)


def test_two_windows_side_by_side_know_each_other_not(demo: Window) -> None:
    with window(str(SLOW_ITEM)) as other:
        assert demo.ask("/findings").status == 200
        assert other.wait().ask("/findings").status == 200
        assert other.ask("/findings", Cookie=f"x={demo.token}").status == 403


def started(*words: str, cache: Path, **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*OPEN, *words],
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_it_reads_and_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    cache = tmp_path / "cache"
    child = started("-", cache=cache, stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(SLOW_ITEM.read_bytes()[:200_000])
    child.stdin.flush()
    assert child.stdout.readline().startswith(b"http://127.0.0.1:")
    time.sleep(0.5)
    began = time.monotonic()
    child.send_signal(number)
    child.wait(
        timeout=30
    )  # what it reads ends after it: the end of the profile is not to come before the signal
    assert time.monotonic() - began < 6
    _, told = child.communicate()
    assert child.returncode == 128 + number
    assert b"Traceback" not in told
    assert [one for one in leftovers(cache) if not one.startswith(".")] == []


def test_a_page_that_waits_is_told_what_went_wrong(tmp_path: Path) -> None:
    """The profile ends in the middle of nothing, long after the page was opened."""
    child = started("-", cache=tmp_path / "cache", stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    address = child.stdout.readline().decode().strip()
    jar = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    assert b"Opening" in jar.open(address).read()
    child.stdin.write(b"not a trace at all")
    child.stdin.close()
    child.stdin = None
    plain = address.split("?", maxsplit=1)[0]
    until = time.monotonic() + 5
    while b"Opening" in (page := jar.open(plain).read()) and time.monotonic() < until:
        time.sleep(0.1)
    assert b"could not be opened" in page
    _, told = child.communicate(timeout=30)
    assert child.returncode == 1
    assert b"is not a trace" in told


def test_standard_input_is_read(tmp_path: Path) -> None:
    with SLOW_ITEM.open("rb") as profile:
        child = started("-", cache=tmp_path / "cache", stdin=profile)
    assert child.stdout is not None
    address = child.stdout.readline().decode().strip()
    jar = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    until = time.monotonic() + 60
    while b"Opening" in (page := jar.open(address).read()) and time.monotonic() < until:
        time.sleep(0.1)
    assert b"<h1>Findings</h1>" in page
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)


def test_ranks_are_opened_when_they_are_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(2):
        shutil.copy(DATA / f"h200_ddp_gloo_rank{rank}.pt.trace.json.gz", folder)
    with window(str(folder), "--store", str(tmp_path / "stores")) as opened:
        opened.wait()
        page = opened.ask("/findings")
        while "Opening" in page.text:
            time.sleep(0.1)
            page = opened.ask("/findings")
        assert 'id="trace-choice"' in page.text
        assert not opened.ask("/api/state?trace=rank1").json["problem"]
        until = time.monotonic() + 30
        while not opened.ask("/api/state?trace=rank1").json["ready"] and time.monotonic() < until:
            time.sleep(0.05)
        assert opened.ask("/kernels?trace=rank1").status == 200
        assert opened.ask("/kernels?trace=rank99").status == 400
        # To open a rank does not make the others wait.
        assert opened.ask("/api/state").json["ready"]


def test_two_traces_are_compared() -> None:
    with window(str(DEMO), "--against", str(SLOW_ITEM)) as opened:
        opened.wait()
        assert 'value="before"' in opened.ask("/kernels").text
        assert opened.ask("/kernels?trace=before").status == 200


def test_the_profile_may_go_and_the_store_too(tmp_path: Path) -> None:
    profile, stores = tmp_path / "t.pt.trace.json.gz", tmp_path / "stores"
    shutil.copy(SLOW_ITEM, profile)
    with window(str(profile), "--store", str(stores)) as opened:
        opened.wait()
        profile.unlink()
        assert opened.ask("/kernels").status == 200
        shutil.rmtree(stores)
        assert opened.ask("/findings").status in (200, 400, 500)
        assert opened.ask("/api/state").status == 200


def test_many_pages_at_once_are_the_pages_one_by_one() -> None:
    with window("--demo") as opened:
        opened.wait()
        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda _: opened.ask("/kernels").text, range(12)))
            states = list(pool.map(lambda _: opened.ask("/findings").status, range(6)))
        assert set(found) == {opened.ask("/kernels").text}
        assert set(states) == {200}


@pytest.mark.parametrize("host", ["0.0.0.0", "::1"])
def test_other_places_to_listen(host: str, tmp_path: Path) -> None:
    child = started("--demo", "--host", host, cache=tmp_path / "cache")
    assert child.stdout is not None
    line = child.stdout.readline().decode()
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=30)
    assert (b"careful" in told) == (host == "0.0.0.0")
    assert ("[::1]" in line) == (host == "::1")


def test_the_forward_command_is_told(tmp_path: Path) -> None:
    environ = {**environment(tmp_path / "cache"), "SSH_CONNECTION": "10.0.0.1 5000 10.0.0.2 22"}
    child = subprocess.Popen([*OPEN, "--demo"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    port = child.stdout.readline().decode().split(":")[2].split("/")[0]
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=30)
    assert f"ssh -N -L {port}:127.0.0.1:{port} ".encode() in told


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_idle_window_is_small() -> None:
    with window("--demo") as opened:
        opened.wait()
        opened.ask("/findings")
        status = Path(f"/proc/{opened.process.pid}/status").read_text(encoding="ascii")
        resident = int(status.split("VmRSS:")[1].split()[0]) << 10
        assert resident < 400 << 20
        ticks = sum(map(int, Path(f"/proc/{opened.process.pid}/stat").read_text().split()[13:15]))
        time.sleep(2)
        more = sum(map(int, Path(f"/proc/{opened.process.pid}/stat").read_text().split()[13:15])) - ticks
        assert more / os.sysconf("SC_CLK_TCK") < 0.2

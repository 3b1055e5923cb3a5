"""Large flame graphs, and files that a trace names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.web.looking import Looker
from tests.web.windows import Window

from stepscope.web.sources import MOST_BYTES, Function, read_source

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STEP = Function("step", 1, 1, 1, 1)


def test_a_file_is_read_only_if_it_is_plain_python(tmp_path: Path) -> None:
    good = tmp_path / "train.py"
    good.write_text("def step():\n    pass\n", encoding="utf-8")
    assert read_source(str(good), [STEP], ()) is not None
    assert read_source("train.py", [STEP], (tmp_path,)) is not None
    bad = ("train.txt", "/etc/passwd", "../train.py", "//host/share/train.py", "\\\\host\\train.py", "a\0.py")
    for name in bad:
        assert read_source(name, [STEP], (tmp_path / "below",)) is None


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "large.py").write_bytes(b"#" * (MOST_BYTES + 1))
    for name in ("pipe.py", "folder.py", "large.py"):
        assert read_source(str(tmp_path / name), [STEP], ()) is None


def test_a_file_that_changed_is_told(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("import torch\n\n@cached\ndef step():\n    pass\n\nx = 1\n", encoding="utf-8")
    found = read_source(str(file), [Function("step", 3, 1, 1, 1), Function("gone", 1, 1, 1, 1)], ())
    assert found is not None
    assert found.moved == ("gone",)
    assert found.ends[3] == 5


@pytest.mark.slow
def test_a_hundred_thousand_bars_are_drawn_at_once(browser: Browser, demo: Window) -> None:
    script = """async () => {
      const { draw } = await import("/static/blocks/flame.js");
      const data = { kind: "paths", names: [], kinds: ["frame"], name: [], of: [], parent: [], total: [],
                     device: [], unit: "ns" };
      for (let at = 0; at < 1000; at++) data.names.push(`module/file.py(${at}): function_${at}`);
      for (let at = 0; at < 100000; at++) {
        data.name.push(at % 1000); data.of.push(0); data.device.push(0);
        data.parent.push(at ? Math.floor((at - 1) / 4) : -1);
        data.total.push(4 ** Math.max(0, 9 - Math.floor(Math.log(3 * at + 1) / Math.log(4) + 1e-9)) * 1000);
      }
      const element = document.createElement("div");
      document.querySelector("main").append(element);
      const before = performance.now();
      draw(element, data);
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      const first = performance.now() - before;
      const canvas = element.querySelector("canvas");
      const again = performance.now();
      const clientY = canvas.getBoundingClientRect().top + 40;
      for (let at = 0; at < 10; at++) {
        canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: 200 + at * 9, clientY }));
      }
      return { first, each: (performance.now() - again) / 10, high: canvas.height };
    }"""
    looker = Looker(browser, demo)
    found = looker.look("/trust").evaluate(script)
    assert looker.complaints == []
    assert found["high"] == 10 * 18
    assert found["first"] < 2000
    assert found["each"] < 200

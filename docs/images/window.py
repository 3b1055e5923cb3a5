# ruff: noqa: INP001 - a script that is run by hand
"""Takes docs/images/window-PAGE.png: every page of the window on a profile, in the machine's Chromium.

`python docs/images/window.py [TRACE [PAGE…]]`; without a trace it is the demo profile. It needs the group
`browser` of pyproject.toml.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.browsers import chromium
from tests.web.windows import window

from stepscope.web.page import listed

TARGET = Path(__file__).parent
WIDTH, HEIGHT = 1280, 800


def main(words: list[str]) -> None:
    """Takes the pictures."""
    about = words[0] if words else "--demo"
    pages = words[1:] or [name for name, info in listed().items() if info.about == "trace"]
    with window(about) as opened, chromium() as browser:
        opened.wait(600)
        page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
        page.goto(f"{opened.address}")
        for name in pages:
            page.goto(f"http://127.0.0.1:{opened.port}/{name}")
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(500)
            taken = TARGET / f"window-{name}.png"
            page.screenshot(path=taken)
            if squeeze := shutil.which("pngquant"):
                import subprocess

                subprocess.run([squeeze, "--force", "--output", taken, "64", taken], check=False)  # noqa: S603


if __name__ == "__main__":
    main(sys.argv[1:])

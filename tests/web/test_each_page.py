"""Each page about one trace, in a real browser: tiny traces, with everything and with nothing in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.drawing import Drawing
from tests.web.looking import Looker
from tests.web.windows import window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

PAGES = (
    *("operators", "operators?by=shape", "operators?by=user_frame", "operators?by=module"),
    *("modules", "source"),
    *("python", "python?order=time", "python?order=samples", "kernels", "kernels?by=shape", "rooflines"),
    *("copies_syncs", "copies_syncs?by=op", "memory", "compile", "trust"),
)
SHAPES = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
USER = "def step(x):\n    y = model(x)\n    y.sum().backward()\n    return y\n\n\nprint('outside')\n"


def with_everything(folder: Path) -> Path:
    """Stacks, modules, shapes, memory, copies and waits, and a file of the user's that exists."""
    code = folder / "train.py"
    code.write_text(USER, encoding="utf-8")
    drawing = Drawing()
    frame = f"{code}(1): step"
    for step, start in enumerate((0, 1000)):
        (
            drawing.mark(step, start, 990)
            .frame(frame, start + 1, 900)
            .frame("nn.Module: Linear_0", start + 5, 200)
            .op("aten::mm", start + 10, 50, args=SHAPES)
            .launch("cudaLaunchKernel", start + 20, 5, corr=10 * step + 1)
            .kernel("void gemm<float, 4>(int)", start + 40, 300, corr=10 * step + 1)
            .launch("cudaStreamSynchronize", start + 300, 100)
        )
    file = folder / "full.json.gz"
    drawing.write(file)
    return file


def with_nothing(folder: Path) -> Path:
    """One operator, and no more."""
    file = folder / "bare.json.gz"
    Drawing().op("aten::mm", 0, 5).write(file)
    return file


# In every run `test_pages.py` looks at all pages of the demo.
@pytest.fixture(
    scope="module", params=["everything", "nothing", pytest.param("demo", marks=pytest.mark.exhaustive)]
)
def looker(
    request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Looker]:
    """A browser at a window on each of the traces."""
    folder = tmp_path_factory.mktemp(request.param)
    makers = {"everything": with_everything, "nothing": with_nothing}
    with ExitStack() as stack:
        if request.param in makers:
            opened = stack.enter_context(window(str(makers[request.param](folder)))).wait()
        else:
            opened = request.getfixturevalue("demo")
        found = Looker(browser, opened)
        found.name = request.param  # type: ignore[attr-defined]
        yield found


def test_pages_draw_and_complain_of_nothing(looker: Looker) -> None:
    page = None
    for path in PAGES:
        page = looker.look(f"/{path}", page)
        assert looker.complaints == [], path
        assert page.locator("main h1").count() == 1, path
        shown = page.inner_text("main")
        assert len(shown) > 40, path
        assert page.locator("main .problem").count() == 0, (path, shown[:300])
        # What is too wide scrolls by itself, the page does not.
        assert page.evaluate("document.documentElement.scrollWidth") <= 1400, path


def test_code_stands_beside_its_cost(looker: Looker) -> None:
    if looker.name != "everything":  # type: ignore[attr-defined]
        pytest.skip("has no code on this machine")
    page = looker.look("/source?file=0")
    rows = page.locator(".source tbody tr")
    assert rows.count() == len(USER.splitlines())
    assert rows.nth(0).locator("td").nth(4).text_content() == "def step(x):"
    assert "600 µs" in (rows.nth(0).text_content() or "")
    assert [rows.nth(at).get_attribute("class") for at in (0, 3, 6)] == ["head", "hot", None]


def test_no_path_from_an_address_is_opened(looker: Looker) -> None:
    for given in ("/etc/passwd", "../../etc/passwd.py", "-1", "99999", "%00", "١"):
        answer = looker.window.ask(f"/source?file={given.encode().hex() if not given.isascii() else given}")
        assert answer.status == 200
        assert b"root:" not in answer.body


def test_a_flame_graph_is_searched_and_looked_into(looker: Looker) -> None:
    if looker.name != "everything":  # type: ignore[attr-defined]
        pytest.skip("has no frames")
    page = looker.look("/python")
    told = page.locator(".flame-told")
    assert "in all" in (told.text_content() or "")
    page.get_by_label("Search in the names").fill("aten::mm")
    assert (told.text_content() or "").startswith("1 found, 100 µs")
    canvas = page.locator(".flame canvas")
    canvas.click(position={"x": 20, "y": 27})
    assert "train.py(1): step" in (told.text_content() or "")
    assert page.get_by_role("button", name="Whole").is_enabled()
    canvas.press("Escape")
    assert page.get_by_role("button", name="Whole").is_disabled()
    assert looker.complaints == []


def test_a_box_of_the_treemap_chooses_its_row(looker: Looker) -> None:
    if looker.name != "everything":  # type: ignore[attr-defined]
        pytest.skip("has no modules")
    page = looker.look("/modules")
    page.locator(".treemap-box").first.click()
    assert page.locator(".grid-detail a", has_text="Operators in it").get_attribute("href") == (
        "/operators?module=Linear_0"
    )
    page.get_by_role("link", name="Operators in it").click()
    page.wait_for_selector("[data-grid=ops] tbody tr[data-at]")
    assert page.locator("[data-grid=ops] tbody td").first.text_content() == "aten::mm"

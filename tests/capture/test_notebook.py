"""A cell of a notebook, run by a real kernel: what it records, and what it shows."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.capture.profiles import calls_in_steps

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the kernel's client has its own

CELL = """
    import stepscope, torch

    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    with stepscope.profile(steps=3, skip=5) as p:
        for _ in range(40):
            model(torch.ones(32, 64)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def run_cells(folder: Path, *cells: str) -> list[list[Any]]:
    """What a kernel shows below each cell."""
    from nbclient import NotebookClient
    from nbformat import v4

    notebook = v4.new_notebook(cells=[v4.new_code_cell(textwrap.dedent(cell)) for cell in cells])
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [cell.outputs for cell in notebook.cells]


def test_a_cell_shows_its_report(torch: Any, tmp_path: Path) -> None:
    recorded, shown, again = run_cells(tmp_path, CELL, "p", CELL + "\n    str(p.folder)")
    folder, second = sorted((tmp_path / "stepscope-runs").iterdir())
    assert folder.name.startswith("notebook-")
    assert calls_in_steps(folder, "light", "Optimizer.step#AdamW") == [(1,)] * 3
    said = "".join(one.text for one in recorded if one.output_type == "stream")
    assert f"to see what is slow: stepscope report stepscope-runs/{folder.name}\n" in said
    html = shown[-1]["data"]["text/html"]
    assert f"<code>stepscope report stepscope-runs/{folder.name}</code>" in html
    assert html.startswith("<div><p><strong>")
    assert shown[-1]["data"]["text/plain"] == f"<stepscope.profile {folder}>"
    assert again[-1]["data"]["text/plain"] == repr(str(second))

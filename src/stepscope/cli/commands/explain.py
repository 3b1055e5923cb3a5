"""Says what a finding, a table or a word of the report means."""

from __future__ import annotations

from typing import Annotated

from stepscope.cli import output

__all__ = ["explain"]


def explain(
    name: Annotated[tuple[str, ...], "a finding, an analysis or a word; without one, all are listed"] = (),
) -> None:
    """Prints what a finding means and how to fix it, the columns of an analysis, or a definition.

    stepscope explain launch-bound prints the page of a finding. stepscope explain idle_gaps prints what the
    columns of an analysis mean. stepscope explain starved prints the definition of a word.
    """
    from stepscope.present import pages
    from stepscope.present.explanations import everything, explanation

    asked = " ".join(name)
    page = explanation(asked) if asked else everything()
    output.put(pages.text(page, width=output.width(), color=output.color()))

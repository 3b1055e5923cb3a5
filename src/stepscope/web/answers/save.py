"""A page as one file, for the button of the window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.responses import Response

from stepscope.web.saving import saved

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["save"]


def save(opened: Opened, given: Mapping[str, str]) -> Response:
    """Gives a page as one file to keep."""
    options = {name: value for name, value in given.items() if name not in ("page", "body")}
    name = given.get("page", "")
    text = saved(opened, name, options)
    headers = {"content-disposition": f'attachment; filename="stepscope-{name}.html"'}
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)

"""What scripts of the pages ask for, as JSON or bytes: one function in one file of `answers`.

A name that comes from outside opens no file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from stepscope import interrupts, registry
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["ANSWERS", "Answer", "answered"]

_LOG = logging.getLogger("stepscope.web")
ANSWERS = "web.answers"
Answer = Callable[["Opened", Mapping[str, str]], "Response | dict[str, Any]"]
"""From what is open and the options of the address; `body` is what a POST brought."""


def answered(name: str, opened: Opened, given: Mapping[str, str]) -> Response:
    """An answer as a response; what goes wrong is told in it."""
    try:
        answer: Answer = registry.load(ANSWERS, name)
        found = answer(opened, given)
    except StepscopeError as error:
        return JSONResponse({"problem": error.message, "hint": error.hint or ""}, status_code=400)
    except Exception as error:  # noqa: BLE001 - one question that fails must not end the window
        interrupts.pass_on()
        _LOG.exception("the answer %s failed", name)
        told = f"{type(error).__name__}: {error}"
        return JSONResponse({"problem": told, "hint": "please report this"}, status_code=500)
    return found if isinstance(found, Response) else JSONResponse(found)

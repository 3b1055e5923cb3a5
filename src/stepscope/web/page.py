"""What a page is: one function that turns what is open into markup.

A page says its title, where it stands in the navigation, and what it is about: one trace, a run of several
ranks, or two traces. It returns the content; the frame around it is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stepscope import registry
from stepscope.errors import StepscopeError
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.present._markup import Markup
    from stepscope.web.opened import Opened, OpenTrace

__all__ = ["PAGES", "About", "PageInfo", "Request", "about_page", "listed", "page"]

PAGES = "web.pages"
About = Literal["trace", "run", "two"]
Page = Callable[["Request"], "Markup"]
Asks = Callable[["Request"], dict[str, Any]]
PageT = TypeVar("PageT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class PageInfo:
    """What a page declares about itself."""

    title: str
    order: int
    """Its place in the navigation, smallest first; tens are groups."""
    about: About
    """What has to be open for it: any trace, a run of several ranks, or two traces to compare."""
    wide: bool
    """Whether it takes the whole width of the window, and its height."""
    without_profile: bool = False
    """Whether it has something to show of a run that has summaries of its ranks, and no profile."""
    asks: Asks | None = None
    """For a page that asks the server while one looks at it: what it may ask in a file, with the answers.

    Questions are named as in `static/saved.js`, which answers them there.
    """


@dataclass(frozen=True, slots=True)
class Request:
    """What a page is asked: about which trace, with which options of the address."""

    opened: Opened
    looked_at: OpenTrace | None
    """None where a run has no profile."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What stands behind the ? of the address."""

    @property
    def trace(self) -> OpenTrace:
        """The trace that is looked at; of a run the rank that was chosen."""
        if self.looked_at is None:
            raise StepscopeError(
                "no rank of this run has a profile here, and its summaries have no events",
                hint=f"stepscope report {self.opened.name}",
            )
        return self.looked_at

    @property
    def key(self) -> str:
        """What names the trace in addresses; empty where there is none."""
        return self.looked_at.key if self.looked_at else ""


def page(
    *,
    title: str,
    order: int,
    about: About = "trace",
    wide: bool = False,
    without_profile: bool = False,
    asks: Asks | None = None,
) -> Callable[[PageT], PageT]:
    """Marks a function as a page."""

    def mark(function: PageT) -> PageT:
        function.info = PageInfo(title, order, about, wide, without_profile, asks)  # type: ignore[attr-defined]
        return function

    return mark


def about_page(function: Callable[..., Any]) -> PageInfo:
    """What a page declared."""
    info = getattr(function, "info", None)
    if not isinstance(info, PageInfo):
        raise TypeError(f"{function.__name__} is no page: it lacks the decorator @page")
    return info


def listed() -> dict[str, PageInfo]:
    """All pages in the order of the navigation."""
    found = {name: about_page(registry.load(PAGES, name)) for name, _ in registry.names(PAGES)}
    return dict(sorted(found.items(), key=lambda one: one[1].order))

"""What a frame's file and function tell: whose code it is, and which phase of training it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.store import phases

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["told_of_frames"]

_PYTHON_FILE = r"\.pyx?$|^<|ipykernel"
_PACKAGES = r"^.*/(?:site|dist)-packages/"
# The engine runs in a thread of its own, where there is no frame of Python.
_ENGINE = r"^torch::autograd::(?:python::Python)?Engine::|^torch::autograd::Node::operator\(\)"


def told_of_frames(file: pa.Array, line: pa.Array, function: pa.Array) -> dict[str, pa.Array]:
    """The columns `place`, `origin` and `phase` of frames."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_python = pc.match_substring_regex(file, _PYTHON_FILE)
    whole = pc.replace_substring(file, "\\", "/")
    short = pc.replace_substring_regex(whole, _PACKAGES, "")
    lines = pc.cast(line.fill_null(0), pa.string())
    names = [
        pc.binary_join_element_wise(pc.binary_join_element_wise(path, lines, "("), function, "): ")
        for path in (short, whole)
    ]
    place = pc.if_else(is_python, names[0], function)
    users = pc.and_(is_python, phases.is_user_frame(names[1]))
    libraries = pc.and_(is_python, phases.is_library_frame(names[1]))
    origin = pc.case_when(pc.make_struct(users, libraries, is_python), "user", "library", "python", "native")
    numbers = phases.own_phases(names[0])
    numbers = pc.if_else(pc.match_substring_regex(function, _ENGINE), phases.BACKWARD, numbers)
    return {
        "place": place,
        "origin": origin,
        "phase": pa.array(phases.PHASES, pa.string()).take(numbers),
    }

"""Python imports this at its start in every process of a captured program: it prepares the capture.

Another `sitecustomize` that the machine has is run as if this one were not here. Nothing in here may fail:
the program must run as it would without us.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # no imports that cost


def _run_the_other_one() -> None:
    """Runs the `sitecustomize` that this one hides."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _prepare() -> None:
    package = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
    added = package not in sys.path
    if added:
        sys.path.append(package)
    try:
        from stepscope.capture.starting import prepare

        prepare()
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"stepscope: this process is not recorded: {type(error).__name__}: {error}\n")
    finally:
        if added:
            sys.path.remove(package)


sys.path[:] = [place for place in sys.path if os.path.abspath(place) != _HERE]  # noqa: PTH100
_run_the_other_one()
if "STEPSCOPE_CAPTURE" in os.environ:
    _prepare()

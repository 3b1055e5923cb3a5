"""Kernels that Inductor generated for a region: from its code, its graphs and its notes on their origin."""

from __future__ import annotations

import json
import re
from typing import Any

from stepscope.sources._compile_messages import LONGEST, kernels_in_code, lines_of_nodes

__all__ = ["RegionKernels"]

_POST_GRAPHS = ("inductor_post_grad_graph", "after_post_grad_graph")
_PRE_GRAPHS = ("dynamo_output_graph", "before_pre_grad_graph", "after_pre_grad_graph")
_MAPPINGS = ("inductor_provenance_tracking_node_mappings",)
_NODES = ("inductor_triton_kernel_to_post_grad_nodes", "inductor_generated_kernel_to_post_grad_nodes")
_STACKS = ("inductor_provenance_tracking_kernel_stack_traces",)
_TUNING = ("triton_kernel_info",)
_CODE = ("inductor_output_code",)
_AT = re.compile(
    r'(?:File "([^"\n]{1,1000})", line (\d{1,9})[^\n]*\n?\s*([^\n]*))|(?:(\S{1,1000}\.py):(\d{1,9}))'
)


class RegionKernels:
    """What is known of the kernels of one region so far."""

    def __init__(self) -> None:
        self._kernels: dict[str, dict[str, Any]] = {}
        self._post: dict[str, tuple[str, str]] = {}
        self._pre: dict[str, tuple[str, str]] = {}
        self._to_pre: dict[str, list[str]] = {}

    def wants(self, name: str) -> bool:
        """Whether an entry of this name says something of kernels."""
        return name in _ALL

    def add(self, name: str, payload: str, clock_ns: int) -> None:
        """Takes an entry."""
        if name in _POST_GRAPHS:
            self._post |= lines_of_nodes(payload)
            return
        if name in _PRE_GRAPHS:
            self._pre |= lines_of_nodes(payload)
            return
        if name in _CODE:
            for kernel, told in kernels_in_code(payload).items():
                self._kernel(kernel, clock_ns).update({key: value for key, value in told.items() if value})
            return
        try:
            told = json.loads(payload)
        except (ValueError, RecursionError):
            return
        if isinstance(told, dict):
            self._notes(name, told, clock_ns)

    def _notes(self, name: str, told: dict[str, Any], clock_ns: int) -> None:
        nodes: Any = told if name in _NODES else told.get("cppCodeToPost") if name in _MAPPINGS else None
        for kernel, of in (nodes or {}).items() if isinstance(nodes, dict) else ():
            if isinstance(of, list):
                # Newer versions number the calls of one kernel: name:1.
                known = self._kernel(re.sub(r":\d+$", "", str(kernel)), clock_ns).setdefault("nodes", [])
                known += [str(one)[:LONGEST] for one in of if str(one) not in known]
        if name in _MAPPINGS and isinstance(told.get("postToPre"), dict):
            self._to_pre |= {
                str(key): list(map(str, of)) for key, of in told["postToPre"].items() if isinstance(of, list)
            }
        for kernel, traces in told.items() if name in _STACKS else ():
            found = _AT.findall(str(traces[-1])) if isinstance(traces, list) and traces else []
            if found:
                file, line, code, other, at = found[-1]
                place = (f"{file or other}:{line or at}", code.strip())
                self._kernel(re.sub(r":\d+$", "", str(kernel)), clock_ns)["place"] = place
        for kernel, of in told.items() if name in _TUNING else ():
            if isinstance(of, dict):
                known = self._kernel(str(kernel), clock_ns)
                configs, compiling = of.get("num_configs"), of.get("compile_time_us")
                known["configs"] = (
                    configs
                    if isinstance(configs, int) and 0 <= configs < 1 << 31
                    else 1
                    if "only_config" in of
                    else None
                )
                if isinstance(compiling, int) and 0 <= compiling < 1 << 50:
                    known["compile_ns"] = compiling * 1000

    def _kernel(self, name: str, clock_ns: int) -> dict[str, Any]:
        return self._kernels.setdefault(name[:LONGEST], {"clock_ns": clock_ns})

    def rows(self, whose: dict[str, Any]) -> list[dict[str, Any]]:
        """A row for each kernel."""
        rows = []
        for name, told in self._kernels.items():
            nodes = told.get("nodes", [])
            if not nodes and len(self._kernels) == 1:  # the only kernel computes all of the graph
                nodes = list(self._post)
            places = list(dict.fromkeys(filter(None, map(self._line, nodes))))
            places = places or [told["place"]] if told.get("place") else places
            rows.append(
                {
                    **whose,
                    **told,
                    "name": name,
                    "nodes": ", ".join(nodes)[:LONGEST] or None,
                    "lines": ", ".join(dict.fromkeys(line for line, _ in places))[:LONGEST] or None,
                    "code": places[0][1][:LONGEST] or None if places else None,
                }
            )
        return rows

    def _line(self, node: str) -> tuple[str, str] | None:
        if node in self._post:
            return self._post[node]
        return next((self._pre[one] for one in self._to_pre.get(node, ()) if one in self._pre), None)


_ALL = frozenset((*_POST_GRAPHS, *_PRE_GRAPHS, *_MAPPINGS, *_NODES, *_STACKS, *_TUNING, *_CODE))

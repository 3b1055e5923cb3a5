"""What serving engines say of an iteration, in the names they give it.

vLLM    execute_context_C(T)_generation_G(T): C and G requests, T tokens of each kind
        execute_T_context_C(sq..sk..sqsq..sqsk..)_generation_G(...): T tokens in all; sq tokens, sk keys
        execute_new_N_cached_M: older; cached requests may decode or go on with a prompt
SGLang  step[EXTEND bs=B toks=T], step[DECODE bs=B], step[MIXED bs=B], step[TARGET_VERIFY bs=B], step[IDLE]
        with more detail: c and g requests, c_sq and g_sq tokens, c_sk and g_sk keys
ATOM    prefill[bs=B tok=T ctx=[..]], decode[bs=B/padded tok=T p=P d=D], eager_decode[...]
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.patterns import late_pattern
from stepscope.records import dataclass

__all__ = ["Load", "load_of", "together"]

Count = int | None

_VLLM = late_pattern(r"execute_(?:\d+_)?context_(\d+)\(([^)]*)\)_generation_(\d+)\(([^)]*)\)")
_VLLM_OLD = late_pattern(r"execute_new_(\d+)_cached_(\d+)")
_SGLANG = late_pattern(r"step\[([A-Z_0-9]+)( .*)?\]")
_ATOM = late_pattern(r"(?:eager_)?(prefill|decode)\[(.*)\]")
_FIELD = late_pattern(r"(\w+)=(\d+)")
_CONTEXTS = late_pattern(r"ctx=(?:(\d+)|\[([\d, ]*)\](?!\.))")
_SGLANG_KINDS = {
    "EXTEND": "prefill",
    "SPLIT_PREFILL": "prefill",
    "DECODE": "decode",
    "TARGET_VERIFY": "decode",
    "MIXED": "mixed",
    "IDLE": "idle",
}


@dataclass(frozen=True, slots=True)
class Load:
    """What an iteration worked on; None where the name does not say it."""

    kind: str | None = None
    requests: Count = None
    prefill_requests: Count = None
    tokens: Count = None
    prefill_tokens: Count = None
    context_tokens: Count = None


def load_of(name: str | None) -> Load | None:
    """The load that a name tells of; None for a name of another kind."""
    if name is None:
        return None
    if found := _VLLM.fullmatch(name):
        return _vllm(int(found[1]), _lengths(found[2]), int(found[3]), _lengths(found[4]))
    if found := _VLLM_OLD.fullmatch(name):
        fresh, cached = int(found[1]), int(found[2])
        kind = ("mixed" if cached else "prefill") if fresh else None
        return Load(kind, fresh + cached)
    if found := _SGLANG.fullmatch(name):
        return _sglang(found[1], _fields(found[2] or ""))
    if found := _ATOM.fullmatch(name):
        return _atom(found[1], found[2])
    return None


def together(loads: Sequence[Load]) -> Load:
    """The load of several iterations in one step; draft models and idle turns add nothing to its kind."""
    if len(loads) == 1:
        return loads[0]
    kinds = {one.kind for one in loads} - {"draft", "idle"} or {one.kind for one in loads}
    return Load(
        (kinds.pop() if len(kinds) == 1 else None if None in kinds else "mixed"),
        _sum([one.requests for one in loads]),
        _sum([one.prefill_requests for one in loads]),
        _sum([one.tokens for one in loads]),
        _sum([one.prefill_tokens for one in loads]),
        _sum([one.context_tokens for one in loads]),
    )


def _sum(counts: Sequence[Count]) -> Count:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _kind(prefill: int, decode: int) -> str:
    if prefill and decode:
        return "mixed"
    return "prefill" if prefill else "decode" if decode else "idle"


def _lengths(text: str) -> tuple[Count, Count]:
    """Tokens and keys: of `sq32sk550sqsq32sqsk550`, or `888`, or `888_788544` (the tokens first)."""
    if found := re.match(r"sq(\d+)sk(\d+)", text):
        return int(found[1]), int(found[2])
    found = re.match(r"\d+", text)
    return (int(found[0]) if found else None), None


def _vllm(prefill: int, of_prefill: tuple[Count, Count], decode: int, of_decode: tuple[Count, Count]) -> Load:
    return Load(
        _kind(prefill, decode),
        prefill + decode,
        prefill,
        _sum([of_prefill[0], of_decode[0]]),
        of_prefill[0],
        _sum([of_prefill[1], of_decode[1]]),
    )


def _fields(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in _FIELD.findall(text)}


def _sglang(mode: str, said: dict[str, int]) -> Load:
    kind = "draft" if mode.startswith("DRAFT") else _SGLANG_KINDS.get(mode)
    requests = said.get("bs")
    if kind == "prefill":
        tokens = said.get("toks", said.get("c_sq"))
        return Load(kind, requests, requests, tokens, tokens, said.get("c_sk"))
    if kind == "decode":
        # Without drafts every request adds one token; with them only a detailed name says how many.
        tokens = said.get("g_sq", requests if mode == "DECODE" else None)
        return Load(kind, requests, 0, tokens, 0, said.get("g_sk"))
    if kind == "mixed":
        tokens = _sum([said.get("c_sq"), said.get("g_sq")])
        context = _sum([said.get("c_sk"), said.get("g_sk")])
        return Load(kind, requests, said.get("c"), tokens, said.get("c_sq"), context)
    return Load(kind, 0, 0, 0, 0, 0) if kind == "idle" else Load(kind, requests)


def _atom(word: str, text: str) -> Load:
    said = _fields(text)
    requests, tokens, context = said.get("bs"), said.get("tok"), said.get("sk")
    if word == "prefill":
        if context is None and (found := _CONTEXTS.search(text)):
            context = int(found[1]) if found[1] else sum(int(one) for one in re.findall(r"\d+", found[2]))
        return Load("prefill", requests, requests, tokens, tokens, context)
    prefill = said.get("p", 0)
    return Load("mixed" if prefill else "decode", requests, prefill, tokens, None if prefill else 0, context)

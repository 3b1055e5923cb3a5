"""How the page looks: a small palette with meaning, light and dark, and the sheet that uses it."""

from __future__ import annotations

from typing import Literal

__all__ = ["MEANINGS", "SCRIPT", "STYLE", "variables"]

# What each colour means is the same in every chart. Text lies on `ground`, `panel` or `code`; on a coloured
# bar or badge it is `on`. Tests compute the contrasts.
_LIGHT = {
    "ground": "#f5f6f8",
    "panel": "#ffffff",
    "code": "#f1f3f6",
    "line": "#d9dee6",
    "text": "#16202e",
    "muted": "#526072",
    "link": "#1a56b0",
    "on": "#ffffff",
    "track": "#e8ebf0",
    "device": "#2563c4",
    "copy": "#0c7a72",
    "fill": "#3d7a3a",
    "communication": "#7b3fb5",
    "calls": "#b4501a",
    "input": "#b3246e",
    "host": "#8a6400",
    "other": "#667386",
    "high": "#b42318",
    "medium": "#965300",
    "low": "#4a5f7d",
    "pass": "#1c7443",
}
_DARK = {
    "ground": "#0f1319",
    "panel": "#171d26",
    "code": "#10161e",
    "line": "#2c3644",
    "text": "#e4e9f0",
    "muted": "#9aa7b8",
    "link": "#82b4ff",
    "on": "#0c1016",
    "track": "#232c38",
    "device": "#6ba4f8",
    "copy": "#43c4b5",
    "fill": "#8ccf85",
    "communication": "#c29bf7",
    "calls": "#f59a5f",
    "input": "#f58cb8",
    "host": "#dcb94a",
    "other": "#94a1b3",
    "high": "#ff8f82",
    "medium": "#f0b45a",
    "low": "#a3b6d1",
    "pass": "#62cf92",
}
MEANINGS = [
    name
    for name in _LIGHT
    if name not in ("ground", "panel", "code", "line", "text", "muted", "link", "on", "track")
]


def _variables(palette: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in palette.items())


_COLOURS = f"""
:root {{ color-scheme: light; {_variables(_LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{
  :root:not([data-theme="light"]) {{ color-scheme: dark; {_variables(_DARK)} }}
}}
@media screen {{
  :root[data-theme="dark"] {{ color-scheme: dark; {_variables(_DARK)} }}
}}
""" + "\n".join(f".{name} {{ --c: var(--{name}); }}" for name in MEANINGS)


def variables(theme: Literal["light", "dark"]) -> str:
    """The colours of a theme, as declarations for whatever has them."""
    return f"color-scheme: {theme}; {_variables(_LIGHT if theme == 'light' else _DARK)}"


_TEXT = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--ground); color: var(--text); overflow-wrap: anywhere;
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
h1, h2, h3 { line-height: 1.25; margin: 0; }
h1 { font-size: 19px; }
h2 { font-size: 17px; margin: 36px 0 12px; }
h3 { font-size: 14px; }
p, ul, ol, dl, dd, figure { margin: 0; padding: 0; }
p + p { margin-top: 6px; }
a { color: var(--link); text-decoration-thickness: 1px; text-underline-offset: 2px; }
a:focus-visible, summary:focus-visible, button:focus-visible, .scroll:focus-visible, pre:focus-visible {
  outline: 2px solid var(--link); outline-offset: 2px; }
code, pre { font: 12.5px/1.5 ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
pre { margin: 0; padding: 8px 12px; overflow-x: auto; overflow-wrap: normal; }
a.word { color: inherit; text-decoration-style: dotted; }
summary { cursor: pointer; color: var(--link); width: fit-content; }
details > *:not(summary) { margin-top: 8px; }
.muted { color: var(--muted); }
.small { font-size: 12.5px; }
.strong { font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; overflow-wrap: normal; }
"""

_PAGE = """
header.top { background: var(--panel); border-bottom: 1px solid var(--line); }
.wide { max-width: 1160px; margin: 0 auto; padding: 16px 24px; }
main.wide { padding-top: 0; padding-bottom: 48px; }
.brand { color: var(--muted); font-size: 12.5px; font-weight: 600; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 12px; font-size: 13px; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin-top: 10px;
  font-size: 13px; }
.facts dt { color: var(--muted); }
.facts li { list-style: none; }
.doubts > li + li { margin-top: 2px; }
.doubts details p { max-width: 90ch; }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px; }
.panel > h3 { margin-bottom: 10px; }
.panel > ul:not([class]) { padding-left: 18px; }
.panel + *, .pair + * { margin-top: 14px; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; align-items: start; }
.pair > .panel + .panel { margin-top: 0; }
.panel + .note, .note { margin-top: 8px; }
.note + .note { margin-top: 2px; }
.verdict { margin: 20px 0 0; padding: 18px 20px; border-left: 5px solid var(--c); }
.verdict h2 { margin: 0; line-height: 1; }
.verdict .sentence { font-size: 17px; line-height: 1.4; margin-top: 10px; max-width: 80ch; }
.verdict .promise { margin-top: 6px; font-weight: 600; }
.badge { display: inline-block; padding: 1px 9px; border-radius: 10px; background: var(--c);
  color: var(--on); font-size: 12px; font-weight: 600; white-space: nowrap; }
.verdict .badge { line-height: 1.5; font-size: 15px; padding: 3px 14px; border-radius: 14px; }
.badge.plain { background: none; color: var(--c); box-shadow: inset 0 0 0 1px var(--c); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(184px, 1fr)); gap: 10px;
  margin-bottom: 14px; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.tile dt { color: var(--muted); font-size: 12.5px; }
.tile dd { font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.35; }
.tile dd + dd { font-size: 12.5px; font-weight: 400; color: var(--muted); }
"""

_CHARTS = """
svg { display: block; width: 100%; overflow: visible; }
svg text { font-size: 11.5px; font-variant-numeric: tabular-nums; fill: var(--muted); }
svg .mark { fill: var(--c); }
svg .on { fill: var(--on); font-weight: 600; }
svg .track { fill: var(--track); }
svg .grid { stroke: var(--line); }
svg .area { fill: var(--c); fill-opacity: 0.25; }
svg .edge { fill: none; stroke: var(--c); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
svg .dashed { stroke-dasharray: 5 3; }
.legend { display: grid; grid-template-columns: repeat(auto-fill, minmax(225px, 1fr)); gap: 2px 28px;
  margin-top: 10px; list-style: none; font-size: 13px; }
.legend li { display: grid; grid-template-columns: 12px 1fr auto 52px; gap: 8px; align-items: center; }
.legend.keys { display: flex; flex-wrap: wrap; }
.legend.keys li { grid-template-columns: 12px auto; }
.swatch { width: 11px; height: 11px; border-radius: 2px; background: var(--c); }
.swatch.inline { display: inline-block; margin-right: 8px; }
.swatch.dash { height: 0; border-radius: 0; border-top: 2px dashed var(--c); background: none; }
.plot { display: grid; grid-template-columns: 58px 1fr; padding-top: 10px; }
figure + figure { margin-top: 14px; }
.rows { display: grid; gap: 5px 12px; align-items: center; font-size: 13px; }
.rows.steps { grid-template-columns: max-content 1fr max-content; }
.rows.heat { gap: 2px 12px; }
.rows.phases { grid-template-columns: max-content minmax(40px, 1fr) 52px minmax(40px, 1fr) 52px; }
.rows .head { color: var(--muted); font-size: 12.5px; }
.rows .head.over { grid-column: span 2; }
.gains { display: grid; gap: 8px 16px; align-items: center;
  grid-template-columns: minmax(260px, 2fr) 3fr minmax(150px, max-content); }
.gains .label { display: flex; gap: 8px; align-items: center; font-size: 13px; }
.gains .label .badge { min-width: 72px; text-align: center; }
.gains .axis { grid-column: 2; }
.gains.fall { gap: 4px 16px; grid-template-columns: minmax(200px, max-content) 1fr max-content; }
.rows.steps + .scroll { margin-top: 14px; }
"""

_CARDS = """
.card { background: var(--panel); border: 1px solid var(--line); border-left: 5px solid var(--c);
  border-radius: 8px; padding: 14px 18px 16px; scroll-margin-top: 12px; }
.card + .card { margin-top: 14px; }
.card > * + * { margin-top: 10px; }
.card .heading { display: flex; flex-wrap: wrap; gap: 4px 10px; align-items: baseline; }
.card h3 { font-size: 15.5px; }
.card .rank { color: var(--muted); font-weight: 600; font-variant-numeric: tabular-nums; }
.card .gain { margin-left: auto; font-weight: 600; font-variant-numeric: tabular-nums; }
.card .because, .card .check { max-width: 95ch; }
.card h4 { margin: 0 0 3px; font-size: 12.5px; color: var(--muted); font-weight: 600; }
.card .places { list-style: none; }
.card .foot { display: flex; flex-wrap: wrap; gap: 2px 18px; }
.copied { display: flex; align-items: start; background: var(--code); border: 1px solid var(--line);
  border-radius: 6px; }
.copied pre { flex: 1; min-width: 0; }
.copied button { margin: 6px; padding: 2px 10px; font: inherit; font-size: 12px; color: var(--link);
  background: var(--panel); border: 1px solid var(--line); border-radius: 5px; cursor: pointer; }
.copied button[hidden] { display: none; }
"""

_TABLES = """
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; font-weight: 600; font-size: 12.5px; color: var(--muted); vertical-align: bottom; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); }
td { vertical-align: top; }
tr:last-child td { border-bottom: 0; }
th:last-child, td:last-child { padding-right: 0; }
th.number { text-align: right; }
td { overflow-wrap: break-word; }
td code, td .small { overflow-wrap: anywhere; }
td.bar { width: 20%; min-width: 60px; padding-top: 9px; }
td.bar.wide { width: 40%; }
td.name { min-width: 130px; }
table.evidence { width: auto; }
table.evidence td, table.evidence th { padding-right: 28px; }
.words { display: grid; grid-template-columns: max-content 1fr; gap: 6px 18px; font-size: 13px; }
.words dt { font-weight: 600; scroll-margin-top: 12px; }
.words dd { max-width: 95ch; }
ol.next { padding-left: 38px; }
ol.next li + li { margin-top: 12px; }
ol.next .copied { margin-top: 6px; }
footer { margin-top: 32px; color: var(--muted); font-size: 12.5px; }
"""

_NARROW = """
@media screen and (max-width: 820px) {
  .pair { grid-template-columns: minmax(0, 1fr); }
  .gains { grid-template-columns: 1fr; gap: 4px; }
  .gains .axis { grid-column: 1; }
  .gains .value { text-align: left; margin-bottom: 10px; }
  .gains.fall { grid-template-columns: 1fr max-content; grid-auto-flow: dense; }
  .gains.fall > svg, .gains.fall .axis { grid-column: 1 / -1; margin-bottom: 6px; }
  .gains.fall .value { text-align: right; margin-bottom: 0; }
}
@media screen and (max-width: 560px) {
  .wide { padding: 12px; }
  .panel, .card { padding: 12px; }
  .facts { grid-template-columns: 1fr; }
  .facts dd { margin-bottom: 6px; }
  .words { grid-template-columns: 1fr; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .roomy { display: none; }
  .stack thead { display: none; }
  .stack td { display: block; padding: 1px 0; border: 0; }
  .stack tr { display: block; padding: 8px 0; border-bottom: 1px solid var(--line); }
  .stack tr:last-child { border: 0; }
  .card .gain { margin-left: 0; width: 100%; }
}
"""

_PRINT = """
@media print {
  @page { margin: 14mm; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  body { background: none; zoom: 0.75; }
  nav, button { display: none; }
  .wide { padding: 0; max-width: none; }
  .panel, .card, .tile, .pair, tr, pre, figure, li { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  .scroll { overflow: visible; }
  summary { color: inherit; list-style: none; font-weight: 600; }
  header.top .wide { padding-bottom: 12px; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
}
"""

STYLE = _COLOURS + _TEXT + _PAGE + _CHARTS + _CARDS + _TABLES + _NARROW + _PRINT
"""The sheet of the page."""

# Buttons are hidden where there is no script. Old browsers do not print what is folded.
SCRIPT = """
for (const button of document.querySelectorAll(".copied button")) {
  const code = button.parentElement.querySelector("code");
  button.hidden = false;
  button.addEventListener("click", async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded) one.open = false;
});
"""
"""Copies code, and opens what is folded before printing; the page does without."""

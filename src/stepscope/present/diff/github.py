"""A comparison as annotations of a job on GitHub."""

from __future__ import annotations

from stepscope.compare import Comparison, StepChange
from stepscope.present._changes import reasons, sentence, share
from stepscope.present._phrases import worth
from stepscope.present._workflow import command, lines
from stepscope.present.formats import format

__all__ = ["github"]

_LEVELS = {"slower": "warning", "faster": "notice", "noise": "notice", "unknown": "warning"}


@format(ending=".github.txt", job_summary="markdown")
def github(comparison: Comparison) -> str:
    """Annotations for GitHub Actions; adds a page to the job summary.

    One workflow command per change, and one for every new finding, at its first location.
    """
    commands = [_annotation(change) for change in comparison.changes]
    for finding in comparison.whole.appeared:
        advice = finding.advice
        place = advice.locations[0] if advice.locations else None
        level = "notice" if finding.severity == "low" else "warning"
        title = f"New: {advice.title} ({worth(finding)})"
        commands.append(command(level, title, f"{advice.because}\n{advice.fix}".strip(), place))
    return lines(commands)


def _annotation(change: StepChange) -> str:
    title = f"{change.word}, {share(change.share)}: {change.before.name} → {change.after.name}"
    said = " ".join(filter(None, (sentence(change), reasons(change), *change.caveats)))
    return command(_LEVELS[change.word], title, said)

"""How often weights are used in a backward pass, and which uses nothing behind them needs: SQL."""

from __future__ import annotations

from stepscope.analyses._in_steps import UPDATES

__all__ = ["IN_PASSES", "KEEPS", "NODE", "USES"]

NODE = "autograd::engine::evaluate_function: "
"""What autograd writes before the name of a node that it evaluates."""
KEEPS = "torch::autograd::AccumulateGrad"
"""What hands a weight its gradient."""
IN_PASSES = f"""
    updates AS (
        SELECT start_ns, row_number() OVER (ORDER BY start_ns) AS number FROM ({UPDATES})),
    in_passes AS MATERIALIZED (
        SELECT s.step, coalesce(u.number, 0) AS updates, o.name, o.start_ns, {{columns}}
        FROM ops o JOIN steps s ON o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
        ASOF LEFT JOIN updates u ON u.start_ns <= o.start_ns
        WHERE o.name = '{KEEPS}' OR starts_with(o.name, '{NODE}'))"""
"""SQL of the nodes in each step, with how often weights were updated before: two passes between which an
optimizer updates weights have different numbers."""

_LAYER = "^(Convolution|Addmm|Mm|Linear|Embedding(Bag)?)Backward"

# Autograd keeps what several uses of a weight give in one buffer, and hands the sum to AccumulateGrad after
# the last of them. It adds in the evaluation of a node, beside the node itself. So an earlier use has the
# same layers without an AccumulateGrad, and every later one has at least one sum for each weight.
#
# It evaluates nodes of later operators first: uses come one behind the other, and the last layer of each that
# is evaluated is its first in the forward pass. A layer that computes no gradient of its input launches less
# work than the same layer does in another use.
USES = f"""
    layers AS MATERIALIZED (
        SELECT *, substr(name, {len(NODE) + 1}) AS layer FROM nodes
        WHERE regexp_matches(substr(name, {len(NODE) + 1}), '{_LAYER}')),
    stretches AS MATERIALIZED (
        SELECT b.*, coalesce(until <= fresh_since AND added = fresh AND e.start_ns >= added_since, FALSE)
                   AS of_a_copy,
               CASE WHEN fresh_first THEN fresh_until
                    WHEN added_first AND l.start_ns >= pass_since THEN l.start_ns
                    ELSE added_since END AS since,
               CASE WHEN NOT fresh_first THEN since WHEN f.start_ns >= pass_since THEN f.start_ns
                    ELSE fresh_since END AS rest_until
        FROM by_pass b
        ASOF LEFT JOIN look_ups e ON e.thread = b.thread AND e.start_ns < b.until
        ASOF LEFT JOIN layers l ON l.thread = b.thread AND l.start_ns < b.added_since
        ASOF LEFT JOIN layers f ON f.thread = b.thread AND f.start_ns < b.fresh_since),
    placed AS MATERIALIZED (
        SELECT t.step, t.thread, t.backward_pass, l.event, l.layer, l.name, l.start_ns, l.end_ns,
               row_number() OVER (PARTITION BY t.step, t.thread, t.backward_pass ORDER BY l.start_ns DESC) - 1
                   AS back,
               count(*) FILTER (l.start_ns >= t.since)
                   OVER (PARTITION BY t.step, t.thread, t.backward_pass) AS many
        FROM stretches t JOIN layers l USING (step, thread, updates)
        WHERE (t.fresh_first OR t.added_first) AND l.start_ns < t.until
              AND (l.start_ns >= t.since OR l.start_ns < t.rest_until)
        QUALIFY many > 0),
    insides AS (
        SELECT i.parent, i.thread, i.start_ns, i.start_ns + coalesce(i.dur_ns, 0) AS end_ns
        FROM ops i JOIN placed p ON i.parent = p.event AND i.name = p.layer),
    pieces AS (
        SELECT i.parent, sum(w.work_events) AS pieces
        FROM launches w ASOF JOIN insides i ON i.thread = w.thread AND i.start_ns <= w.start_ns
        WHERE w.start_ns < i.end_ns GROUP BY i.parent),
    compared AS MATERIALIZED (
        SELECT p.*, back // many AS use, back % many AS place, coalesce(w.pieces, 0) AS pieces,
               p.layer = first_value(p.layer) OVER same AS named,
               coalesce(w.pieces, 0) = first_value(coalesce(w.pieces, 0)) OVER same AS alike
        FROM placed p LEFT JOIN pieces w ON w.parent = p.event
        WINDOW same AS (PARTITION BY step, thread, backward_pass, back % many ORDER BY back)),
    layered AS MATERIALIZED (
        SELECT step, thread, backward_pass, use, min(start_ns) AS since, max(end_ns) AS until,
               count(*) = max(many) AND bool_and(named) AS fits, bool_and(alike OR place = 0) AS alike,
               any_value(pieces) FILTER (place = 0) AS first_pieces
        FROM compared GROUP BY step, thread, backward_pass, use),
    summed AS (
        SELECT u.step, u.thread, u.backward_pass, u.use, count(*) AS sums
        FROM (SELECT n.thread, n.start_ns FROM nodes n JOIN ops a ON a.parent = n.event
              WHERE a.name IN ('aten::add_', 'aten::add')) a
        ASOF JOIN layered u ON u.thread = a.thread AND u.since <= a.start_ns
        GROUP BY u.step, u.thread, u.backward_pass, u.use),
    told AS (
        SELECT t.*, l.use, l.alike, l.first_pieces, l.since AS layers_since, l.until AS layers_until,
               bool_and(l.fits) OVER (back ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
               AND coalesce(bool_and(coalesce(s.sums, 0) >= t.added)
                   OVER (back ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), TRUE) AS told
        FROM stretches t LEFT JOIN layered l USING (step, thread, backward_pass)
        LEFT JOIN summed s USING (step, thread, backward_pass, use)
        WINDOW back AS (PARTITION BY t.step, t.thread, t.backward_pass ORDER BY l.use)),
    uses AS MATERIALIZED (
        SELECT step, thread, backward_pass, pass_since, added,
               CASE WHEN use > 0 THEN layers_since ELSE since END AS since,
               CASE WHEN use > 0 THEN layers_until ELSE until END AS until,
               of_a_copy OR (fresh_first AND (coalesce(use, 0) = 0 OR
                   (alike AND first_pieces > 0
                    AND first_pieces <= first_value(first_pieces) OVER (every ORDER BY use))))
               OR coalesce(added_first AND bool_and(alike) OVER every
                   AND first_pieces < max(first_pieces) OVER every, FALSE) AS ended
        FROM told WHERE told OR coalesce(use, 0) = 0
        WINDOW every AS (PARTITION BY step, thread, backward_pass))
"""
"""SQL of the uses, from `nodes`, `by_pass` and `look_ups`: `uses` has when each began and ended, and whether
nothing behind it needs a gradient; `stretches` has the last one of each pass."""

"""The documented queries of the audit: one a report, the same text for SQLite and PostgreSQL.

Each stands in docs/sql-audit.md as it is run, a test compares them. Texts are portable by
hand: no date arithmetic (a minute is the beginning of a timestamp's text), no function
that one of the two lacks, exact numbers before they are rounded.

`:from_at` and `:to_at` bound the picks by time, `:at` is an offset; `sql_of` puts literals there,
since they are ours and their form is checked.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

FIRST_TIME = "1970-01-01 00:00:00"
LAST_TIME = "9999-12-31 23:59:59"
LAST_OFFSET = (1 << 63) - 1
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?")


class Chart(Enum):
    """How a report is drawn."""

    MINUTES = "minutes"  # sums over time, one series on another
    BARS = "bars"
    SPANS = "spans"  # from a time to a time


class Plot(NamedTuple):
    """What of a report's columns is drawn. series: columns that tell colours apart.

    along: label of a bar or span, or the time of MINUTES. values: one or several columns.
    """

    chart: Chart
    along: tuple[str, ...]
    values: tuple[str, ...]
    series: tuple[str, ...]
    unit: str


class Report(NamedTuple):
    """A canned query. asks: the question it answers, in one line."""

    name: str
    asks: str
    sql: str
    plot: Plot


def sql_of(report: Report, from_at: str = FIRST_TIME, to_at: str = LAST_TIME, at: int = LAST_OFFSET) -> str:
    """The text to run. Times as the database writes them: `2026-11-29 18:41:00`, UTC."""
    for time in (from_at, to_at):
        if not _TIME.fullmatch(time):
            raise ValueError(f"{time!r} is no time of the form 2026-11-29 18:41:00")
    text = report.sql.replace(":from_at", f"'{from_at}'").replace(":to_at", f"'{to_at}'")
    return text.replace(":at", str(int(at)))


_WORKERS = """\
SELECT minute, phase, namespace, worker, reason, count(*) AS picks
FROM (
  SELECT substr(CAST(asked_at AS TEXT), 1, 16) AS minute, 'decode' AS phase,
         namespace, decode_worker AS worker, decode_reason AS reason
  FROM picks
  WHERE asked_at >= :from_at AND asked_at < :to_at
  UNION ALL
  SELECT substr(CAST(asked_at AS TEXT), 1, 16), 'prefill',
         namespace, prefill_worker, prefill_reason
  FROM picks
  WHERE prefill_worker IS NOT NULL AND asked_at >= :from_at AND asked_at < :to_at
) AS chosen
GROUP BY minute, phase, namespace, worker, reason
ORDER BY minute, phase, namespace, worker, reason"""

_SPREAD = """\
SELECT model, namespace, worker, picks,
       round(100.0 * picks / total, 2) AS share_percent,
       workers,
       round(1.0 * most * workers / total, 3) AS most_to_mean
FROM (
  SELECT model, namespace, decode_worker AS worker, count(*) AS picks,
         sum(count(*)) OVER (PARTITION BY model) AS total,
         count(*) OVER (PARTITION BY model) AS workers,
         max(count(*)) OVER (PARTITION BY model) AS most
  FROM picks
  WHERE decode_worker IS NOT NULL AND asked_at >= :from_at AND asked_at < :to_at
  GROUP BY model, namespace, decode_worker
) AS counted
ORDER BY model, picks DESC, namespace, worker"""

_OVERLAP = """\
SELECT model, namespace, worker, count(*) AS answers, comparable,
       sum(predicted) AS predicted_tokens,
       sum(cached) AS cached_tokens,
       sum(prompt) AS prompt_tokens,
       round(100.0 * sum(cached) / nullif(sum(prompt), 0), 2) AS cached_percent,
       round(100.0 * sum(confirmed) / nullif(sum(predicted), 0), 2) AS confirmed_percent,
       round(100.0 * sum(sum(confirmed)) OVER (PARTITION BY model)
             / nullif(sum(sum(predicted)) OVER (PARTITION BY model), 0), 2) AS model_confirmed_percent
FROM (
  SELECT told.*, CASE WHEN cached < predicted THEN cached ELSE predicted END AS confirmed
  FROM (
    SELECT p.model, p.namespace, p.decode_worker AS worker,
           CASE WHEN p.prefill_worker IS NOT NULL THEN 'pair'
                WHEN p.overlap_blocks IS NULL THEN 'no' ELSE 'yes' END AS comparable,
           CASE WHEN p.prefill_worker IS NULL THEN p.overlap_blocks * p.block_size END AS predicted,
           e.cached_tokens AS cached,
           e.prompt_tokens AS prompt
    FROM picks AS p
    JOIN dispatch_ends AS e ON e.pick_id = p.pick_id
    WHERE e.cached_tokens IS NOT NULL AND p.asked_at >= :from_at AND p.asked_at < :to_at
  ) AS told
) AS answered
GROUP BY model, namespace, worker, comparable
ORDER BY model, namespace, worker, comparable"""

_PREFIXES = """\
SELECT p.model, c.namespace, c.worker, c.dp_rank, c.phase, count(*) AS candidates,
       sum(CASE WHEN c.chosen THEN 1 ELSE 0 END) AS picks,
       sum(c.overlap_blocks - c.predicted_blocks) AS device_blocks,
       sum(c.predicted_blocks) AS predicted_blocks,
       sum(c.host_blocks) AS host_blocks, sum(c.disk_blocks) AS disk_blocks,
       round(CAST(avg(c.credit) AS NUMERIC), 3) AS mean_credit
FROM pick_candidates AS c
JOIN picks AS p ON p.lane = c.lane AND p.log_offset = c.log_offset
WHERE c.credit IS NOT NULL AND p.asked_at >= :from_at AND p.asked_at < :to_at
GROUP BY p.model, c.namespace, c.worker, c.dp_rank, c.phase
ORDER BY p.model, c.namespace, c.worker, c.dp_rank, c.phase"""

_SLOWEST = """\
SELECT p.pick_id, p.request_id, p.asked_at, p.model, p.namespace,
       p.decode_worker, p.decode_reason, p.prefill_worker, p.estimated_tokens,
       e.status, e.first_byte_us, e.duration_us
FROM picks AS p
JOIN dispatch_ends AS e ON e.pick_id = p.pick_id
WHERE e.first_byte_us IS NOT NULL AND p.asked_at >= :from_at AND p.asked_at < :to_at
ORDER BY e.first_byte_us DESC, p.log_offset
LIMIT 20"""

_STALLS = """\
WITH seen AS (
  SELECT c.namespace, c.worker, c.dp_rank, c.phase, c.verdict, c.log_offset, p.asked_at,
         lag(c.verdict) OVER (
           PARTITION BY c.namespace, c.worker, c.dp_rank, c.phase ORDER BY c.log_offset
         ) AS verdict_before
  FROM pick_candidates AS c
  JOIN picks AS p ON p.lane = c.lane AND p.log_offset = c.log_offset
  WHERE p.asked_at >= :from_at AND p.asked_at < :to_at
), numbered AS (
  SELECT namespace, worker, dp_rank, phase, verdict, asked_at,
         sum(CASE WHEN verdict_before = verdict THEN 0 ELSE 1 END) OVER (
           PARTITION BY namespace, worker, dp_rank, phase ORDER BY log_offset
         ) AS stretch
  FROM seen
)
SELECT namespace, worker, dp_rank, phase, verdict,
       min(asked_at) AS first_at, max(asked_at) AS last_at, count(*) AS picks
FROM numbered
WHERE verdict IN ('stalled', 'silent')
GROUP BY namespace, worker, dp_rank, phase, verdict, stretch
ORDER BY min(asked_at), namespace, worker, dp_rank, phase"""

_CONFIGS = """\
SELECT c.config_version, c.adopted_at, c.proposed_by, c.picker,
       count(p.pick_id) AS picks,
       round(100.0 * sum(CASE WHEN p.decode_reason = 'load' THEN 1 ELSE 0 END)
             / nullif(count(p.pick_id), 0), 2) AS by_load_percent,
       sum(CASE WHEN p.decode_reason = 'no_candidate' THEN 1 ELSE 0 END) AS no_candidate,
       sum(CASE WHEN e.status <> 'ok' THEN 1 ELSE 0 END) AS not_ok,
       round(avg(1.0 * e.first_byte_us), 1) AS mean_first_byte_us,
       c.settings,
       lag(c.settings) OVER (ORDER BY c.log_offset) AS settings_before
FROM configs AS c
LEFT JOIN picks AS p
  ON p.config_version = c.config_version AND p.asked_at >= :from_at AND p.asked_at < :to_at
LEFT JOIN dispatch_ends AS e ON e.pick_id = p.pick_id
GROUP BY c.log_offset, c.config_version, c.adopted_at, c.proposed_by, c.picker, c.settings
ORDER BY c.log_offset"""

_DEATHS = """\
WITH deaths AS (
  SELECT namespace, worker, to_offset, to_at, end_cause
  FROM workers
  WHERE end_cause IN ('deleted', 'conflict', 'dropped')
), touched AS (
  SELECT d.namespace, d.worker, d.to_offset, d.to_at, d.end_cause,
         p.pick_id, p.request_id, p.asked_at,
         CASE WHEN p.decode_worker = d.worker THEN 'decode' ELSE 'prefill' END AS phase,
         e.status, e.fault, e.http_status, e.ended_at, e.log_offset AS end_offset,
         max(CASE WHEN e.status = 'ok' AND e.log_offset < d.to_offset THEN e.log_offset ELSE -1 END)
           OVER (PARTITION BY d.namespace, d.worker, d.to_offset) AS last_ok
  FROM deaths AS d
  JOIN picks AS p
    ON p.namespace = d.namespace AND (p.decode_worker = d.worker OR p.prefill_worker = d.worker)
   AND p.log_offset < d.to_offset
  LEFT JOIN dispatch_ends AS e ON e.pick_id = p.pick_id
  WHERE p.asked_at >= :from_at AND p.asked_at < :to_at
)
SELECT namespace, worker, to_at AS left_at, end_cause, phase, pick_id, request_id, asked_at,
       coalesce(status, 'open') AS status, fault, http_status, ended_at
FROM touched
WHERE end_offset IS NULL OR status = 'unknown' OR end_offset > to_offset
   OR (fault = 'fault' AND end_offset > last_ok)
ORDER BY to_at, namespace, worker, asked_at, pick_id"""

_SHADOW = """\
SELECT s.shadow_config, p.model, count(*) AS picks,
       sum(CASE WHEN s.moved THEN 1 ELSE 0 END) AS moved,
       sum(CASE WHEN s.unverifiable IS NOT NULL THEN 1 ELSE 0 END) AS not_asked,
       round(100.0 * sum(CASE WHEN s.moved THEN 1 ELSE 0 END)
             / nullif(sum(CASE WHEN s.moved IS NULL THEN 0 ELSE 1 END), 0), 2) AS moved_percent,
       min(p.asked_at) AS first_at, max(p.asked_at) AS last_at
FROM shadow_picks AS s
JOIN picks AS p ON p.lane = s.lane AND p.log_offset = s.log_offset
WHERE p.asked_at >= :from_at AND p.asked_at < :to_at
GROUP BY s.shadow_config, p.model
ORDER BY s.shadow_config, p.model"""

_VERIFICATIONS = """\
SELECT logic, verdict, count(*) AS picks, min(first_difference) AS first_difference,
       min(verified_at) AS first_at, max(verified_at) AS last_at
FROM verifications
WHERE verified_at >= :from_at AND verified_at < :to_at
GROUP BY logic, verdict
ORDER BY logic, verdict"""

_ENDS = """\
SELECT p.model, e.backend, e.status, e.http_status, e.fault, count(*) AS dispatches,
       round(avg(1.0 * e.first_byte_us), 1) AS mean_first_byte_us,
       max(e.first_byte_us) AS max_first_byte_us,
       sum(e.prompt_tokens) AS prompt_tokens, sum(e.completion_tokens) AS completion_tokens
FROM picks AS p
JOIN dispatch_ends AS e ON e.pick_id = p.pick_id
WHERE p.asked_at >= :from_at AND p.asked_at < :to_at
GROUP BY p.model, e.backend, e.status, e.http_status, e.fault
ORDER BY p.model, e.backend, e.status, e.http_status, e.fault"""

_FLEET = """\
SELECT namespace, worker, role, model, component, dp_start_rank, dp_size, block_size,
       total_kv_blocks, max_num_batched_tokens, first_seen, from_offset, from_at, to_offset, end_cause
FROM workers
WHERE from_offset <= :at AND (to_offset IS NULL OR to_offset > :at)
ORDER BY namespace, worker"""

_MINUTES = """\
SELECT minute, model, picks, by_kv_aware, by_load, by_round_robin_stale, by_no_candidate,
       ended, ok, predicted_tokens, cached_tokens, prompt_tokens, completion_tokens,
       first_byte_p50_us, first_byte_p90_us, first_byte_p99_us
FROM rollups
WHERE minute >= :from_at AND minute < :to_at
ORDER BY minute, model"""

REPORTS = {
    report.name: report
    for report in (
        Report(
            "workers",
            "Picks by worker and reason over time",
            _WORKERS,
            Plot(Chart.MINUTES, ("minute",), ("picks",), ("phase", "namespace", "worker"), "picks a minute"),
        ),
        Report(
            "spread",
            "Share of each worker, and spread per model",
            _SPREAD,
            Plot(Chart.BARS, ("model", "namespace", "worker"), ("share_percent",), (), "share of picks, %"),
        ),
        Report(
            "overlap",
            "Overlap predicted against cached tokens answered",
            _OVERLAP,
            Plot(
                Chart.BARS,
                ("model", "namespace", "worker", "comparable"),
                ("predicted_tokens", "cached_tokens", "prompt_tokens"),
                (),
                "tokens",
            ),
        ),
        Report(
            "prefixes",
            "What ranks held of prompts, by tier, and what it was worth",
            _PREFIXES,
            Plot(
                Chart.BARS,
                ("model", "namespace", "worker", "dp_rank", "phase"),
                ("device_blocks", "predicted_blocks", "host_blocks", "disk_blocks"),
                (),
                "blocks",
            ),
        ),
        Report(
            "slowest",
            "Slowest first bytes, with their picks",
            _SLOWEST,
            Plot(Chart.BARS, ("request_id",), ("first_byte_us",), (), "time to first byte, us"),
        ),
        Report(
            "stalls",
            "Stalled and silent intervals of each rank, as picks saw them",
            _STALLS,
            Plot(
                Chart.SPANS,
                ("namespace", "worker", "dp_rank", "phase"),
                ("first_at", "last_at"),
                ("verdict",),
                "",
            ),
        ),
        Report(
            "configs",
            "What each settings version changed, and how picks went under it",
            _CONFIGS,
            Plot(Chart.BARS, ("config_version",), ("picks", "not_ok"), (), "picks"),
        ),
        Report(
            "deaths",
            "Requests touched by a worker's death",
            _DEATHS,
            Plot(Chart.BARS, ("namespace", "worker", "status"), (), (), "requests"),
        ),
        Report(
            "shadow",
            "Disagreement of the shadow picker",
            _SHADOW,
            Plot(Chart.BARS, ("shadow_config", "model"), ("moved_percent",), (), "picks moved, %"),
        ),
        Report(
            "verifications",
            "Picks that were repeated by the sampling verifier",
            _VERIFICATIONS,
            Plot(Chart.BARS, ("logic", "verdict"), ("picks",), (), "picks"),
        ),
        Report(
            "ends",
            "How dispatches ended, by model and backend",
            _ENDS,
            Plot(Chart.BARS, ("model", "backend", "status"), ("dispatches",), (), "dispatches"),
        ),
        Report(
            "fleet",
            "Workers that existed at an offset (--at), or now",
            _FLEET,
            Plot(Chart.BARS, ("namespace", "role"), (), (), "workers"),
        ),
        Report(
            "minutes",
            "Roll-ups: what each minute of a model's picks came to",
            _MINUTES,
            Plot(Chart.MINUTES, ("minute",), ("picks",), ("model",), "picks"),
        ),
    )
}
"""Reports by name, in the order of docs/sql-audit.md."""

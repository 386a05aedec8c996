"""The four dashboards, as tables of panels. The files below `dashboards/` are what this module writes:

python -m deploy.grafana.boards
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from deploy.grafana.panels import CHOSEN, RATE, Board, Panel, Query, busiest, quantiles, rates, text_of

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"

FLEET = Board(
    "picklog-fleet",
    "Picklog: fleet",
    (
        Panel(
            "Workers",
            (
                Query(
                    f"sum by (role) (max by (namespace, role) (continuum_dynamo_workers{{{CHOSEN}}}))",
                    "{{role}}",
                ),
            ),
            is_stacked=True,
            note="Published workers. Those of role unknown are never picked.",
        ),
        Panel(
            "Discovery",
            (Query(f"continuum_dynamo_discovery_connected{{{CHOSEN}}}", "{{instance}} {{process}}"),),
            note="1 while every namespace has been read and is watched.",
        ),
        Panel(
            "Load subscriptions",
            (Query(f"sum by (state) (continuum_dynamo_load_subscriptions{{{CHOSEN}}})", "{{state}}"),),
            is_stacked=True,
        ),
        Panel(
            "Frames of load publishers",
            (Query(rates("continuum_dynamo_load_events_total", "result"), "{{result}}"),),
            "ops",
        ),
        Panel(
            "Changes of the fleet",
            (
                Query(
                    rates("picklog_fleet_changes_total", "instance, process"),
                    "changes {{instance}} {{process}}",
                ),
                Query(
                    rates("picklog_workers_departed_total", "instance, process"),
                    "departures {{instance}} {{process}}",
                ),
            ),
            "ops",
        ),
        Panel(
            "Discovery facts",
            (
                Query(
                    rates("continuum_dynamo_discovery_events_total", "kind", 'kind!~"put|delete"'), "{{kind}}"
                ),
            ),
            "ops",
            note="Other than puts and deletes.",
        ),
        Panel(
            "Decode blocks in use, by worker",
            (
                Query(
                    busiest("continuum_dynamo_worker_active_decode_blocks"),
                    "{{worker}} #{{dp_rank}}",
                ),
            ),
            width=12,
            note="The 20 highest. Workers of Dynamo 1.4 to 1.6 leave this empty.",
        ),
        Panel(
            "KV blocks in use, by worker",
            (
                Query(
                    busiest("continuum_dynamo_worker_kv_used_blocks"),
                    "{{worker}} #{{dp_rank}}",
                ),
            ),
            width=12,
            note="The 20 highest.",
        ),
        Panel(
            "Frontends and backends",
            (
                Query(
                    f'picklog_backend_health{{{CHOSEN},state="ready"}}',
                    "{{backend}} {{instance}} {{process}}",
                ),
            ),
            width=12,
            note="1 while it is used.",
        ),
        Panel(
            "Requests in flight",
            (Query(f"sum by (backend) (picklog_backend_in_flight{{{CHOSEN}}})", "{{backend}}"),),
            width=12,
            is_stacked=True,
        ),
    ),
)

PICKS = Board(
    "picklog-picks",
    "Picklog: picks and requests",
    (
        Panel(
            "Answers",
            (Query(rates("picklog_answers_total", "status", 'route=~"/v1/.*"'), "{{status}}"),),
            "reqps",
            is_stacked=True,
        ),
        Panel("Errors of the router", (Query(rates("picklog_errors_total", "code"), "{{code}}"),), "reqps"),
        Panel("Ready", (Query(f"picklog_ready{{{CHOSEN}}}", "{{instance}} {{process}}"),)),
        Panel(
            "Decode picks by reason",
            (Query(rates("continuum_dynamo_selection_total", "reason", 'role="decode"'), "{{reason}}"),),
            "reqps",
            is_stacked=True,
        ),
        Panel(
            "Prefill picks by reason",
            (Query(rates("continuum_dynamo_selection_total", "reason", 'role="prefill"'), "{{reason}}"),),
            "reqps",
            is_stacked=True,
            note="Where picks go by load alone, prefill always takes turns on Dynamo 1.4 to 1.6.",
        ),
        Panel(
            "Requests by path",
            (
                Query(rates("disaggregated_requests_total", "routing_path"), "{{routing_path}}"),
                Query(rates("disaggregated_errors_total", "phase"), "failed: {{phase}}"),
            ),
            "reqps",
        ),
        Panel("Time of a pick", quantiles("picklog_pick_seconds"), "s"),
        Panel("Age of the picked rank's sample", quantiles("picklog_pick_input_age_seconds"), "s"),
        Panel(
            "From acceptance to the end of the answer",
            quantiles("picklog_answer_seconds"),
            "s",
            note="Of all routes.",
        ),
        Panel(
            "Retries and unusable frontends",
            (
                Query(
                    rates("picklog_retries_total", "instance, process"), "retries {{instance}} {{process}}"
                ),
                Query(
                    rates("picklog_frontend_unusable_total", "instance, process"),
                    "unusable {{instance}} {{process}}",
                ),
            ),
            "ops",
        ),
        Panel(
            "Sampled picks, repeated",
            (Query(rates("picklog_picks_verified_total", "verdict"), "{{verdict}}"),),
            "ops",
            note="`different` must stay 0.",
        ),
        Panel(
            "Shadow",
            (Query(rates("picklog_shadow_picks_total", "result"), "{{result}}"),),
            "ops",
            note="Empty without a shadow.",
        ),
    ),
)

LOG = Board(
    "picklog-log",
    "Picklog: log and replicas",
    (
        Panel(
            "Records folded",
            (Query(rates("picklog_folded_records_total", "instance, process"), "{{instance}} {{process}}"),),
            "ops",
        ),
        Panel(
            "Behind the log",
            (Query(f"picklog_log_lag_seconds{{{CHOSEN}}}", "{{instance}} {{process}}"),),
            "s",
            note="Round trip of an own ping. Above a second the process is not ready.",
        ),
        Panel(
            "Records not folded yet",
            (
                Query(f"picklog_log_lag_records{{{CHOSEN}}}", "{{instance}} {{process}}"),
                Query(f"picklog_follower_lag_records{{{CHOSEN}}}", "follower of {{instance}} {{process}}"),
                Query(f"picklog_audit_lag_records{{{CHOSEN}}}", "rows of {{instance}} {{process}}"),
            ),
        ),
        Panel("Append to durable", quantiles("picklog_append_seconds"), "s"),
        Panel(
            "Appended and not durable",
            (Query(f"picklog_append_pending_bytes{{{CHOSEN}}}", "{{instance}} {{process}}"),),
            "bytes",
        ),
        Panel(
            "Not in the log",
            (
                Query(
                    rates("picks_unlogged_total", "instance, process"),
                    "answered before logged {{instance}} {{process}}",
                ),
                Query(
                    rates("picklog_appends_lost_total", "instance, process"), "lost {{instance}} {{process}}"
                ),
                Query(rates("picklog_shed_total", "importance"), "shed: {{importance}}"),
            ),
            "ops",
            note="All must stay 0.",
        ),
        Panel(
            "Waiting in the owner's spool",
            (
                Query(f"picklog_spool_bytes{{{CHOSEN}}}", "{{instance}} {{process}}"),
                Query(f"picklog_spool_records{{{CHOSEN}}}", "facts {{instance}} {{process}}"),
            ),
            "short",
            note="On Kafka, while the brokers take less than there is to say.",
        ),
        Panel(
            "Messages that stream workers have not written",
            (
                Query(f"sum by (instance) (picklog_stream_lag_messages{{{CHOSEN}}})", "{{instance}}"),
                Query(
                    f"sum by (instance, peer) (picklog_stream_away{{{CHOSEN}}}) > 0",
                    "{{instance}} waits for the {{peer}}",
                ),
            ),
            note="Behind the end of the audit's topic. Empty without `audit.sink: stream`.",
        ),
        Panel(
            "Log on disk",
            (
                Query(f"picklog_log_bytes{{{CHOSEN}}}", "{{instance}} {{process}}"),
                Query(f"picklog_log_bytes_max{{{CHOSEN}}}", "ceiling {{instance}} {{process}}"),
            ),
            "bytes",
        ),
        Panel(
            "How long a record is kept",
            (Query(f"log_horizon_seconds{{{CHOSEN}}}", "{{instance}} {{process}}"),),
            "s",
        ),
        Panel(
            "Age of the newest checkpoint",
            (Query(f"picklog_checkpoint_age_seconds{{{CHOSEN}}}", "{{instance}} {{process}}"),),
            "s",
        ),
        Panel(
            "Fold stopped or begun anew",
            (
                Query(f"picklog_fold_stopped{{{CHOSEN}}}", "stopped: {{reason}} {{instance}} {{process}}"),
                Query(rates("picklog_fold_restarts_total", "reason"), "anew: {{reason}}"),
            ),
        ),
        Panel(
            "Records without effect",
            (Query(rates("picklog_records_without_effect_total", "result"), "{{result}}"),),
            "ops",
        ),
        Panel(
            "Wall clock minus log time",
            (Query(f"picklog_clock_drift_seconds{{{CHOSEN}}}", "{{instance}} {{process}}"),),
            "s",
        ),
        Panel(
            "CPU",
            (
                Query(
                    f'rate(process_cpu_seconds_total{{{CHOSEN},job="picklog"}}{RATE})',
                    "{{instance}} {{process}}",
                ),
            ),
            "percentunit",
            note="1 is a whole core, the most that one process uses.",
        ),
        Panel(
            "Memory",
            (Query(f'process_resident_memory_bytes{{{CHOSEN},job="picklog"}}', "{{instance}} {{process}}"),),
            "bytes",
        ),
        Panel(
            "Stood still",
            (Query(f"increase(picklog_stalls_total{{{CHOSEN}}}{RATE})", "{{instance}} {{process}}"),),
            note="Times for over a second.",
        ),
        Panel(
            "Sizes of the projections",
            (Query(f"max by (projection) (picklog_projection_entries{{{CHOSEN}}})", "{{projection}}"),),
            width=12,
        ),
        Panel(
            "Settings and releases",
            (
                Query(f"picklog_config_version{{{CHOSEN}}}", "settings {{instance}} {{process}}"),
                Query(f"count by (version) (picklog_build_info{{{CHOSEN}}})", "processes of {{version}}"),
            ),
            width=12,
        ),
    ),
)

KV = Board(
    "picklog-kv",
    "Picklog: prefixes",
    (
        Panel(
            "Prefix-aware picks",
            (Query(rates("continuum_dynamo_kv_selection_total", "result"), "{{result}}"),),
            "reqps",
            is_stacked=True,
            width=12,
        ),
        Panel(
            "Cached prompt tokens",
            (Query(rates("picklog_cached_tokens_total", "said_by"), "as the {{said_by}} says"),),
            "ops",
            width=12,
            note="The two grow alike where predictions are true.",
        ),
        Panel(
            "Predicted blocks, checked",
            (Query(rates("picklog_kv_checked_blocks_total", "result"), "{{result}}"),),
            "ops",
        ),
        Panel(
            "Least share of confirmed blocks",
            (Query(f"picklog_kv_match_ratio{{{CHOSEN}}}", "{{instance}} {{process}}"),),
            "percentunit",
        ),
        Panel(
            "Models whose predictions fail",
            (Query(f"picklog_kv_models_mismatched{{{CHOSEN}}}", "{{instance}} {{process}}"),),
            note="Their picks go by load.",
        ),
        Panel(
            "Share of confirmed blocks, by model",
            (Query(f"min by (model) (picklog_kv_model_match_ratio{{{CHOSEN}}})", "{{model}}"),),
            "percentunit",
            width=24,
            note="The least that a router finds. Under `dynamo.kv.match_ratio_min` its picks go by load.",
        ),
        Panel(
            "Block events", (Query(rates("continuum_dynamo_kv_events_total", "result"), "{{result}}"),), "ops"
        ),
        Panel(
            "Subscriptions to block events",
            (Query(f"sum by (state) (continuum_dynamo_kv_subscriptions{{{CHOSEN}}})", "{{state}}"),),
            is_stacked=True,
        ),
        Panel(
            "Tokenizers and templates",
            (Query(rates("continuum_dynamo_kv_artifacts_total", "result"), "{{result}}"),),
            "ops",
        ),
    ),
)

BOARDS: Final = (FLEET, PICKS, LOG, KV)


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for board in BOARDS:
        (FOLDER / f"{board.uid}.json").write_text(text_of(board), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

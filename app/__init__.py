"""Composition root: the only folder that knows everything.

cli.py               the console script
wiring.py            builds each role from settings; names concrete classes
processes.py         children: start, watch, stop; garbage collector policy
config_*.py          YAML, rules, loading, reload plans, the config commands
tail.py              step machine of a log reader: slices, pings, readiness, agreement
log_tail.py          its asyncio shell
aside.py             states that disagreed, for whoever looks for the cause
state_comparison.py  one of those, or a checkpoint, against what the log folds to
owner.py             ticks, adoptions, due checkpoints: what only the owner says
follower.py          writes checkpoints behind the live log
checkpoint_store.py  where checkpoints are kept
observe.py           notices and records -> metric series and log lines
admin.py             the admin endpoints
marks.py             "-15m", "0:18233", ISO times -> offsets
log_cli.py, replay_*cli.py, capture_cli.py, feed_cli.py, audit_cli.py  the offline commands
log_places.py        where they find a log: a data directory, a capture or a topic
following.py         how they follow one that grows
pick_following.py    picks as they come; verify_following.py, whatif_following.py: who asks them
capture_*.py         captures: the file, its reader, import, origin, signature
feeding.py, staging_admin.py  a staging directory while it is fed
reasking.py          step machine: picks of a growing log, each on the state it was made on
second_look.py       differences that wait a moment before they are told
follower_asking.py   its shell in the follower; shadow*.py: who asks, and where rows go
follower_figures.py  the follower's figures in its parent's metrics; follower_standing.py: how it stands
"""

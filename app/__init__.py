"""Composition root: the only folder that knows everything.

cli.py               the console script
wiring.py            builds each role from settings; names concrete classes
processes.py         children: start, watch, stop; garbage collector policy
config_*.py          YAML, rules, loading, reload plans, the config commands
tail.py              step machine of a log reader: slices, pings, readiness, agreement
log_tail.py          its asyncio shell
owner.py             ticks, adoptions, due checkpoints: what only the owner says
follower.py          writes checkpoints behind the live log
checkpoint_store.py  where checkpoints are kept
observe.py           notices and records -> metric series and log lines
admin.py             the admin endpoints
marks.py             "-15m", "0:18233", ISO times -> offsets
log_cli.py, replay_cli.py  the offline commands
"""

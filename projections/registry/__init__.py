"""Which workers exist: keys of the fleet, joined and published.

json_text.py  how is JSON of others read the same way everywhere?
records.py    what does a value say? Tolerant readers of the four kinds of records
artifacts.py  which files make prompts of a model, as its card names them?
subset.py     what is kept of a value that is too large to keep?
keyspace.py   which keys are held? Puts, deletes, passes, drops, ceilings
claims.py     who else claims this identity? Keys by identity, conflicts reported once
join.py       which card belongs to which worker, and in which role?
mixing.py     which models are served by both kinds of pools?
observed.py   what is told of a change? Notices of puts, deletes, passes, role conflicts
fleet.py      what is published? Fleet, the value that pickers read
reducer.py    the registry: records in, fleet out
"""

"""Turns requests into picks and picks into dispatches.

picker/       the pure choice
question.py   everything a pick needs that the fold cannot give, frozen in one step
rotations.py  round-robin counters of a phase and model
pinning.py    step machine of a request: pick, log, send, output, end
settings.py   what the router is told
metrics.py    what it reports
ingress/      the front door
dispatch/     frontends and ordinary backends
service.py    puts them together behind two ports
"""

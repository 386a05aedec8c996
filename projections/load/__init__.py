"""How busy ranks are: what they report, what was sent to them, what both say together.

store.py         the latest sample of each rank, and when each worker was last heard
held_samples.py  what the store holds
live_ranks.py    the question that load reducers ask the registry
ledger.py        dispatches that no sample has answered yet, stalls, suspicion
ledger_lines.py  the lines of one pick, and the arithmetic on them
charges.py       what one rank was charged with, as sums over time
backlog.py       a sample and its age read as a verdict and a backlog
"""

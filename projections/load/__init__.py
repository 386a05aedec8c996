"""How busy ranks are: what they report, what was sent to them, what both say together.

store.py    the latest sample of each rank, and when each worker was last heard
ledger.py   dispatches that no sample has answered yet, stalls, suspicion
backlog.py  a sample and its age read as a verdict and a backlog
"""

"""What the audit says of the log, as flat rows; `app` writes them into SQL.

rows.py         the row types: which columns
rollups.py      what a minute of a model's picks came to, and its histogram of first bytes
translation.py  the rows of picks, ends, workers, settings, replicas, shadows, verifications
"""

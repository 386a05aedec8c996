"""What the audit says of the log, as flat rows; `app` writes them into SQL.

rows.py         the row types: which columns
translation.py  the rows of picks, ends, workers, settings, replicas, shadows, verifications
"""

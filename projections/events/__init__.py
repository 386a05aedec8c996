"""Records of the log: what may be written, and how it is laid out in bytes.

envelope.py        Record, Mark, writer ids
discovery.py       facts of the four watched keyspaces
signals.py         facts of load publishers
picks.py           questions, outcomes, picks, ends
control.py         facts about the log itself: owner, time, replicas, settings
held.py            bulk facts of a checkpoint
kinds.py           the kind table: number -> fact type, schema, who may write it
codec.py           one record <-> canonical bytes with a check word
segment_format.py  bytes of a segment: header, commit batches, chain
ports.py           what readers and writers of a log must offer; MemoryLog
"""

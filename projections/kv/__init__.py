"""Which blocks of prompts the ranks hold: block events in, overlap of a prompt out.

index.py         what each slot holds, exactly: stored, removed and cleared events in, matches out
holdings.py      who holds which blocks under which names
run_tree.py      the tree of runs: it grows, splits, forgets
runs.py          what they are made of: runs, slots, names of their own
columns.py       packed columns of hashes and what is done with a whole column at once
index_limits.py  how much the index may hold
index_audit.py   every invariant of the index, for tests
held_runs.py     the index said in canonical pieces, for checkpoints
run_loader.py    an index filled from such pieces
ranks.py         the ranks of which blocks may be known, and the slot of each
cursors.py       their publishers: what was taken from each, and since when it is not heard
state.py         all of that together: fold modes, ageing, departures, bindings
reducer.py       batches of events and picks taken into it
side_index.py    blocks that ranks will hold, as picks predict them
prefixes.py      how much of a prompt each rank holds at the time of a question
held_state.py    the state as facts of a checkpoint and back
"""

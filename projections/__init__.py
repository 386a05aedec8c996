"""Vocabulary and meaning: pure code that turns committed records into state.

Nothing here does I/O, reads a clock or draws a random number; a test enforces it.

identity.py   workers, ranks, publishers: one key from numbers, hex and decimal text
bounds.py     every compiled-in ceiling, with unit, reason and source
notices.py    closed sets of outcomes that reducers and codecs report
refused_frames.py what is told of frames that were refused
events/       records of the log: facts, envelope, codec, segment bytes, ports
registry/     which workers exist: held keys, joins, the published fleet
load/         how busy ranks are: samples, the dispatch ledger, backlog at a time
kv/           which blocks of prompts ranks hold, and will hold
status.py     what operators look at: subscriptions, passes, replicas, settings
view.py       the only reading side of a picker
checkpoint.py fold state to ordinary records and back
fold.py       intake and the fixed reducer order
fold_state.py the projections together, and their digests
fold_modes.py numbered behaviours of reducers, and which of them are wanted
"""

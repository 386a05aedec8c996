"""Replay: reads logs, writes nothing but bundles and staging folders, through ports.

Walking a log
  log_walk.py      records of a range, and their kinds from a byte or two
  condemned.py     which offsets every fold skips
  distrusted.py    which picks their replica named as suspect later
  fold_cursor.py   a fold that goes forward from the newest checkpoint before an offset
  scout.py         reads ahead of it: picks in order of their as-of, batches, own facts
  own_facts.py     overlays of picks
  engine.py        each pick with the state and the overlay that it was made on; parts

Asking again
  verify.py        asks each pick again and compares the bytes
  agreement.py     what an owner's ticks say against the log or the code
  chains.py        own numbers and rotations of replicas, and where they break
  explain.py       one pick as a document

Looking at another time
  timeline.py      the state at an offset
  state_parts.py   in what two states of one offset differ
  changes.py       what changed between two offsets
  change_words.py  the same in sentences
  setting_words.py what differs between versions of the settings

Asking otherwise
  alternative.py   the same question under other settings
  moves.py         where a pick would have gone instead, and why
  whatif.py        both, counted over a range
  spread.py        how evenly picks are spread

Taking away
  capture.py       a window of a log as one file
  redaction.py     the same without addresses and cards
  feed.py          a log into a staging log, compared at every tick
"""

"""The log that keeps facts: step machines that decide, files that hold.

appender       what a writer sends next, what it sheds, what it does after an unclear append
outage         ledger lines of picks whose records had to be dropped
claim          who is the owner
log_clock      log time of the owner
log_writer     the asyncio shell around the three
segment_log    the owner's side of the files: commit, roll, recover
segment_upkeep compression, retention, reserve, horizon
segment_reader the reading side, in any process
segment_store  one stored segment, plain or compressed, as bytes at positions
segment_files  names, permissions and the few calls of the operating system that can fail
manifest       what is known of each segment without opening it
durable_mark   how far readers of other processes may see
raw_frames     raw frames beside the log, by offset
"""

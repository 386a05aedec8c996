"""The log that keeps facts: step machines that decide, files that hold.

appender         what a writer sends next, what it sheds, what it does after an unclear append
appends          the words between the appender and its shell: importance, receipt, effects
spool            what waits for a log that is away, beyond the appender's memory
spool_files      the spool on local disk
spool_notes      what people are told of it
shed_samples     samples that were shed, and the later one that speaks for them
outage           ledger lines of picks whose records had to be dropped
claim            who is the owner
standby          when a standby may claim: the owner is silent and it is not cut off itself
log_clock        log time of the owner
log_writer       the asyncio shell around the appender
writer_settings  its settings, its clocks, figures of a commit
upkeep_rounds    upkeep, round after round, in a thread
ownership        the shell of the claim: appends it and reads it back
last_owner       who owned a log last, and until when
segment_log      the owner's side of the files: commit and roll
segment_recovery opening for writing: what a crash left is cut, damage is reported
segment_upkeep   compression, retention, horizon
segment_settings sizes and ages
staged_log       a log that is a copy of another, record by record
reserve          room kept for critical records when the disk is full
segment_reader   the reading side, in any process
segment_store    one stored segment, plain or compressed, as bytes at positions
segment_files    names, permissions and the few calls of the operating system that can fail
manifest         what is known of each segment without opening it
durable_mark     how far readers of other processes may see
grouped_store    group commit of several threads
owner_socket     the owner's door for router processes
socket_store     a router process's side of it
socket_frames    what they say to each other
unix_socket      names of any length, exact reads, deadlines
log_check        walking a whole log: check words, order and hash chain
raw_frames       raw frames beside the log, by offset
log_copy         copying a log record by record, and the proof that both are equal
segment_copy     a data directory as the target of a copy
kafka_settings   where a log on Kafka is
kafka_client     TLS, SASL and time limits, as the client library takes them
kafka_asking     asking for a topic makes none
kafka_loop       the client's own thread and event loop
kafka_admin      topics: made, described, refused
kafka_records    a record's place in the log, told by its header
kafka_fetch      the library's consumer: assign and seek, no group
kafka_reader     the reading side of a topic
kafka_base       the checkpoint that a copied log begins with
kafka_send       the library's producer: whole batches, transactions
kafka_log        the writing side of a topic
kafka_copy       a topic as the target of a copy
kafka_raw_topic  the topic of raw frames: its messages, and which one will do
kafka_raw_frames raw frames of an owner on their way there
kafka_raw_reader raw frames found again, beside a walk over the log
"""

"""Discovery: how records of the fleet come into the log, as differences.

source.py           the port: what a source of keys offers, its events and failures, its settings
discovery_pass.py   step machine of a pass: list, compare, read, watch, end, wait
pass_effects.py     what the machine wants done
backoff.py          the wait between passes
held_keys.py        what was logged of every key, and which difference a sighting makes
settings.py         endpoints, folders, namespaces, backoff: what a watcher is started with
restart.py          which change of settings replaces the watcher, why, and what it drops
sources.py          the source that settings name
siblings.py         namespaces that are almost the configured one
runner.py           asyncio shell: the supervised task around source and machine
blocking_calls.py   one blocking call at a time, in a thread that may hang, with a deadline
etcd_messages.py    the etcd messages that a reader needs, built in code
etcd_endpoints.py   addresses, TLS and channel options of an etcd connection
etcd_session.py     one pass over one etcd channel: ranges, one watch stream, silence
etcd_refusals.py    what grpc and etcd say, as reasons for the end of a pass
etcd_source.py      source `etcd`: dials endpoints, logs in, gives sessions
etcd3_adapter.py    the same port over the library `etcd3` (extra, not the default)
file_source.py      source `file`: Dynamo's file store, polled and never touched
file_listing.py     one look at the folders of the file store, bounded
"""

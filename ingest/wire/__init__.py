"""Sans-I/O codecs of what the fleet says: bytes in, typed values out; nothing here awaits.

| module | idea |
| --- | --- |
| `zmtp` | bounded ZMTP 3.x subscriber machine: greeting, READY, subscription, frames, ceilings |
| `zmtp_frames` | the bytes of ZMTP itself: greeting, commands, frames of a message |
| `zmtp_limits` | every ceiling and time of a subscription, one value a topic family |
| `publisher_frames` | the four-frame message of a publisher: header, envelope, ActiveLoad |
| `router_events` | kv-events of a relaying worker: typed, tolerant, to packed columns |
| `event_columns` | the same for big frames of the usual form, without an object a block |
| `event_packer` | events on their way into the columns of the log |
| `engine_events` | block events of an engine without a relay: ids, groups, hashes of tokens |
| `engine_forms` | the positional and the named form of those events, read into one |
| `engine_keys` | what an engine adds to a block's hash: images, adapter, salt |
| `fleet_keys` | the four keyspaces: prefixes, percent-encoding, key to parts and back |
"""

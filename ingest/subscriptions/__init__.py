"""Subscriptions: one bounded connection to every publisher that the folded fleet names, a family each.

| module | idea |
| --- | --- |
| `supervisor` | running subscriptions follow the fleet: admission, restarts, a stalled loop, the end |
| `subscriber` | one publisher for as long as its record exists: sessions, waits between them, facts |
| `session` | one connection: the ZMTP machine behind an asyncio transport |
| `held_frames` | what a standby has heard in the last ten seconds |
| `takeover` | what a new owner says of it |
| `families` | which publishers a family listens to: load samples, block events, engines |
| `message_stream` | the port between a subscriber and what its family makes of messages |
| `sample_stream` | load samples, merged to the newest of each rank |
| `event_stream` | block events, one record a frame; reads nothing while the log sheds |
| `engine_stream` | the same of an engine without a relay |
| `engine_bindings` | which worker an engine belongs to that does not name it |
| `worker_places` | what of a worker outlives its restart, as the fold holds it |
| `advertised` | host and system port in the records of a worker |
| `continuity` | numbers of one connection: gaps, repeats, merging to the newest sample of a rank |
| `refusal_counts` | refused frames, told once a second and result |
| `connectors` | how a connection is made: direct TCP, allowed addresses, limits |
| `addresses` | `tcp://host:port` and which addresses may be dialled |
| `resolver` | name lookups in threads that may hang |
| `dial_gate` | how many connections are begun at once |
| `reconnect_wait` | the wait before the next connection |
| `loop_watch` | notices that this process itself stood still |
| `reasons` | the fixed words of why a subscription is where it is |
"""

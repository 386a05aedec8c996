"""Sans-I/O codecs of what the fleet says: bytes in, typed values out; nothing here awaits.

| module | idea |
| --- | --- |
| `zmtp` | bounded ZMTP 3.x subscriber machine: greeting, READY, subscription, frames, ceilings |
| `zmtp_frames` | the bytes of ZMTP itself: greeting, commands, frames of a message |
| `zmtp_limits` | every ceiling and time of a subscription, one value a topic family |
| `publisher_frames` | the four-frame message of a publisher: header, envelope, ActiveLoad |
| `fleet_keys` | the four keyspaces: prefixes, percent-encoding, key to parts and back |
"""

"""Sending: frontends and ordinary backends, and what their answers mean.

refusals.py     the table of what an answer means (decision 31)
breaker.py      leaving a failing backend alone for a while
shim_pools.py   backends, their health and models, which replica takes a request
health.py       probing backends
connection.py   one HTTP/1.1 connection to a backend
deadline.py     a deadline that moves on at every byte
upstream.py     a backend's address, and its idle connections
heads.py        heads of answers: parsing and framing
shim_client.py  one dispatch: tries with the same pins, deadlines, the answer's beginning
relay.py        an answer's bytes from the backend to the client, untouched
usage.py        token counts from the tail of an answer
"""

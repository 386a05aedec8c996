"""The front door: HTTP in, one request value out, answers and errors back.

errors.py       the closed list of error codes and the shape of error bodies
bodies.py       request bodies: limits, JSON, what must be taken out of them
pin_headers.py  which headers go on, the pins that we write, what an answer discloses
keys.py         client keys and the backends they may use
answers.py      the client's side of a relayed answer
chat.py         chat completions and completions from acceptance to the last byte
models.py       which models can be served now
http_server.py  the listening server, routes and limits
"""

"""From a request's text to block hashes: files of the model, rendering, tokens.

artifact_set.py     which files must all workers of a model agree on, and what is had of them?
artifact_source.py  where does a file lie? Paths and URIs of cards
artifact_thread.py  blocking calls off the event loop, also those that never return
artifact_cache.py   what was fetched before? Verified blobs on disk, and bounded reads of files
artifact_fetch.py   how is a file fetched from a worker or the hub, whatever answers?
artifacts.py        which files are pinned, loaded, on their way, refused? ArtifactStore
render_input.py     what does a frontend make of a body, whatever the template?
message_shape.py    what does a template take, and how are messages written for it?
simple_chat.py      roles and texts alone, as most chats are: packed for a process
chat_beginnings.py  how do messages get into minijinja?
chat_template.py    minijinja and jinja2 behind one door
segment_encoder.py  a tokenizer that encodes text in segments
segment_memo.py     what was encoded before?
hash_memo.py        what was hashed before?
render_wire.py      messages between a router and its render processes
render_worker.py    the process that runs templates and tokenizers
render_process.py   one such process, seen from the router
render_pool.py      which process does a job, and what if it dies?
tokenizer_pool.py   tokens of a text, from memory or from a process
rank_news.py        could a rank have confirmed what was predicted?
prompt_blocks.py    from a body to block hashes: one door
"""

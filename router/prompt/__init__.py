"""From a request's text to block hashes: files of the model, rendering, tokens.

artifact_set.py     which files must all workers of a model agree on, and what is had of them?
artifact_source.py  where does a file lie? Paths and URIs of cards
artifact_thread.py  blocking calls off the event loop, also those that never return
artifact_cache.py   what was fetched before? Verified blobs on disk, and bounded reads of files
artifact_fetch.py   how is a file fetched from a worker or the hub, whatever answers?
artifacts.py        which files are pinned, loaded, on their way, refused? ArtifactStore
"""

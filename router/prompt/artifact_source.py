"""Where a file lies: paths and URIs as cards write them, read strictly.

    /models/tiny/tokenizer.json, file:///models/...     read on this machine
    http(s)://10.0.0.7:9090/v1/metadata/...             a worker's own metadata
    hf://<repo[@revision]>/<file>                       the Hugging Face hub

Anything else is no place that we know. A URI with a user in it, a relative path, a `..` in
the name of a repository are refused here, before anything is contacted.

Source: wire contract 2.5.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from yarl import URL

_LOCAL_HOSTS: Final = ("", "localhost")
_NAME: Final = r"(?!\.{1,2}(?:[/@]|\Z))[A-Za-z0-9._-]+"
_HUB: Final = re.compile(
    rf"hf://(?P<repo>{_NAME}(?:/{_NAME})?)(?:@(?P<revision>[A-Za-z0-9._%-]+))?/(?P<file>{_NAME}(?:/{_NAME})*)"
)


class LocalFile(NamedTuple):
    """A file of this machine, by its absolute path."""

    path: str


class WebFile(NamedTuple):
    """A file behind HTTP."""

    url: URL


class HubFile(NamedTuple):
    """A file of a repository of the hub. revision: a branch, tag or commit."""

    repo: str
    revision: str
    file: str

    def url(self, endpoint: str) -> URL:
        """Its address at a hub. Raises ValueError for an endpoint that is none."""
        hub = web_url(endpoint)
        if hub is None:
            raise ValueError("the hub's endpoint is no http(s) URL")
        path = f"{self.repo}/resolve/{quote(self.revision, safe='')}/{self.file}"
        return URL(f"{str(hub).rstrip('/')}/{path}", encoded=True)


Source = LocalFile | WebFile | HubFile


def source_of(text: str) -> Source | None:
    """The place that a card's path names, None for none that we know."""
    if text.startswith("/"):
        return LocalFile(text)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return None
    if scheme.lower() == "file":
        host, _, path = rest.partition("/")
        plain = unquote("/" + path, errors="surrogateescape")
        return LocalFile(plain) if host in _LOCAL_HOSTS and "\x00" not in plain else None
    if scheme.lower() == "hf":
        found = _HUB.fullmatch("hf://" + rest)
        if found is None:
            return None
        revision = unquote(found["revision"] or "main")
        return HubFile(found["repo"], revision, found["file"])
    url = web_url(text)
    return WebFile(url) if url is not None else None


def scheme_of(text: str) -> str:
    """The kind of a place for log lines: file, http, https, hf or other."""
    source = source_of(text)
    if isinstance(source, LocalFile):
        return "file"
    if isinstance(source, HubFile):
        return "hf"
    return source.url.scheme if isinstance(source, WebFile) else "other"


def web_url(text: str) -> URL | None:
    """An http(s) URL with a host and without a user, None for anything else."""
    try:
        url = URL(text)
        is_plain = url.scheme in ("http", "https") and bool(url.host) and url.raw_user is None
        return url if is_plain and url.raw_password is None and url.port else None
    except ValueError:
        return None


def rank_of(source: Source | None) -> int:
    """Which places are tried first: this machine, then workers, then the hub."""
    if isinstance(source, LocalFile):
        return 0
    return 1 if isinstance(source, WebFile) else 2

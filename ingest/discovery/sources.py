"""The source that settings name. The optional libraries are imported here and nowhere before.

Each source lives behind an extra of its own, so choosing one is also the moment to find
that it is not installed; that is `SourceMissing`, with the line that mends it. `etcd` takes
our own client, or the adapter on the library `etcd3` where that extra is installed instead
(the two exclude each other: they need different releases of protobuf).
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from ingest.discovery.file_source import FileSource
from ingest.discovery.settings import DiscoverySettings, SourceKind
from ingest.discovery.source import DiscoverySource, EndReason, SourceFailed

_OWN: Final = ("ingest.discovery.etcd_source", "EtcdSource")
_LIBRARY: Final = ("ingest.discovery.etcd3_adapter", "Etcd3Source")
# kind -> modules and classes in the order of preference, and the extra to install
_OPTIONAL: Final = {
    SourceKind.ETCD: ((_OWN, _LIBRARY), "etcd"),
    SourceKind.ETCD3: ((_LIBRARY,), "etcd3"),
}


class SourceMissing(SourceFailed):
    """The library of the chosen source is not installed; the pass ends, `detail` says what to install."""


def source_of(settings: DiscoverySettings) -> DiscoverySource:
    """A new source. Raises SourceMissing, or ValueError where its section is absent."""
    if settings.source is SourceKind.FILE:
        if settings.file is None:
            raise ValueError("source file needs a root")
        return FileSource(settings.file)
    if settings.etcd is None:
        raise ValueError(f"source {settings.source} needs endpoints")
    candidates, extra = _OPTIONAL[settings.source]
    missing: ImportError | None = None
    for module, class_name in candidates:
        try:
            source_class: Any = getattr(importlib.import_module(module), class_name)
        except ImportError as problem:
            missing = missing or problem
            continue
        source: DiscoverySource = source_class(settings.etcd)
        return source
    text = f"source {settings.source} needs its library: pip install 'picklog[{extra}]'"
    raise SourceMissing(EndReason.ERROR, text) from missing

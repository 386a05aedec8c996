"""What a watcher is started with: where the records are, which namespaces, how long to wait.

Values arrive checked (the configuration's rules CFG-04..22 are kept before); nothing here
reads files or the environment. Secrets are wrapped so that printing settings shows none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from projections.bounds import SECOND_US


class SourceKind(StrEnum):
    """Where records come from; the word stands in `PassBegan.source`."""

    ETCD = "etcd"
    ETCD3 = "etcd3"  # etcd through the library of that name
    FILE = "file"


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files and the name to check. Files are read anew at each pass, so renewed ones count."""

    ca_cert: str | None = None  # None: the authorities that grpc trusts
    client_cert: str | None = None
    client_key: str | None = field(default=None, repr=False)
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class EtcdAuth:
    """User and password; a token is fetched with them for each pass."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class EtcdConnection:
    """Endpoints as `http(s)://host:port` or `host:port`, one scheme for all; 1 to 16."""

    endpoints: tuple[str, ...]
    tls: EtcdTls | None = None
    auth: EtcdAuth | None = None


@dataclass(frozen=True, slots=True)
class FileStore:
    """Dynamo's file store: the folder that holds `v1`."""

    root: str
    poll_us: int = SECOND_US // 2
    ttl_us: int = 10 * SECOND_US  # Dynamo's own; a key file untouched for longer is dead


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """Everything of one watcher. `etcd` is set for the etcd kinds, `file` for the file store."""

    source: SourceKind
    namespaces: tuple[str, ...]
    etcd: EtcdConnection | None = None
    file: FileStore | None = None
    backoff_initial_us: int = SECOND_US // 2
    backoff_max_us: int = 30 * SECOND_US
    enabled: bool = True

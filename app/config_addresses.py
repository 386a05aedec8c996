"""Addresses in a configuration: etcd endpoints, bind addresses, backend URLs, networks.

Each reader takes the text of one key and gives a typed value or raises `AddressFault`, whose words never
repeat the text, since it may hold credentials (CFG-07). No name is resolved here.
"""

import ipaddress
import re
from typing import NamedTuple

PORT_MAX = 65_535

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?")
_PORT = re.compile(r"[0-9]{1,5}")
_INSIDE_SUFFIXES = (".svc", ".local", ".internal", ".localhost", ".lan", ".intranet", ".home.arpa", ".test")
WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})


class AddressFault(ValueError):
    """The text is not such an address. message: what is wrong; hint: what to write."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class Endpoint(NamedTuple):
    """An http or https server. host without brackets; port 1..65535."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}"


class Bind(NamedTuple):
    """A listening address: a TCP host and port, or a Unix socket path (then host is empty and port 0)."""

    host: str
    port: int
    unix_path: str | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.unix_path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def read_etcd_endpoint(text: str) -> Endpoint:
    """`http(s)://host:port` or bare `host:port`, which counts as http (CFG-05 to CFG-08)."""
    shape = "write http(s)://host:port or host:port, IPv6 in brackets"
    scheme, rest = _split_scheme(text)
    if scheme not in (None, "http", "https"):
        raise AddressFault("has a scheme other than http and https", shape)
    _refuse_credentials(rest)
    if "?" in rest or "#" in rest:
        raise AddressFault("has a query or a fragment", "end it after the port, without ? and #")
    if "/" in rest.removesuffix("/"):
        raise AddressFault("has a path", "end it after the port")
    host, port = read_host_port(rest.removesuffix("/"), shape)
    if port == 0:
        raise AddressFault("has port 0", shape)
    return Endpoint(scheme or "http", host, port)


def read_bind(text: str) -> Bind:
    """`host:port`, `[v6]:port` or `unix:/path`; port 0 takes a free one."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/") or len(path.encode("utf-8", "replace")) > 107 or "\0" in path:
            raise AddressFault("is not the path of a socket", "write unix:/absolute/path, up to 107 bytes")
        return Bind("", 0, path)
    return Bind(*read_host_port(text, "write host:port, such as 127.0.0.1:8080 or [::1]:8080"))


def read_backend_url(text: str) -> tuple[Endpoint, str]:
    """`http(s)://host[:port][/prefix]`: the server and the prefix without a slash at its end."""
    shape = "write http(s)://host:port"
    scheme, rest = _split_scheme(text)
    if scheme not in ("http", "https"):
        raise AddressFault("must begin with http:// or https://", shape)
    authority, slash, tail = rest.partition("/")
    _refuse_credentials(authority)
    if "?" in rest or "#" in rest or any(character <= " " or character == "\x7f" for character in rest):
        raise AddressFault("has a query, a fragment or white space", shape)
    prefix = (slash + tail).rstrip("/")
    if prefix == "/v1" or prefix.endswith("/v1"):
        raise AddressFault("ends with /v1, which the router adds itself", "leave /v1 out")
    if (not authority.startswith("[") and ":" not in authority) or authority.endswith("]"):
        authority += ":443" if scheme == "https" else ":80"
    host, port = read_host_port(authority, shape)
    if port == 0:
        raise AddressFault("has port 0", shape)
    return Endpoint(scheme, host, port), prefix


def read_host_port(text: str, shape: str) -> tuple[str, int]:
    """Host (without brackets, names in lower case) and port of `host:port`."""
    if text.startswith("["):
        inside, closed, port_text = text[1:].partition("]:")
        if not closed or not _is_ip(inside, 6):
            raise AddressFault("is not an IPv6 address in brackets with a port", shape)
        host = inside.lower()
    else:
        host, colon, port_text = text.rpartition(":")
        if not colon:
            raise AddressFault("has no port", shape)
        if ":" in host:
            raise AddressFault("is an IPv6 address without brackets", shape)
        if not _HOST_NAME.fullmatch(host):
            raise AddressFault("has no usable host", shape)
        host = host.lower()
    if not _PORT.fullmatch(port_text) or int(port_text) > PORT_MAX:
        raise AddressFault("has a port outside 0 to 65535", shape)
    return host, int(port_text)


def looks_external(host: str) -> bool:
    """Whether a host seems to lie outside a cluster: a public address, or a dotted name of no inner zone."""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        name = host.rstrip(".")
        inside = ".svc." in name or any(name.endswith(suffix) for suffix in _INSIDE_SUFFIXES)
        return "." in name and not inside


def is_network(text: str) -> bool:
    """Whether it is an IPv4 or IPv6 CIDR; host bits may be set."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text


def _split_scheme(text: str) -> tuple[str | None, str]:
    match = _SCHEME.match(text)
    if match is None:
        return None, text
    return match.group(1).lower(), text[match.end() :]


def _refuse_credentials(text: str) -> None:
    if "@" in text:
        raise AddressFault("holds a user name or password", "give credentials by their own keys")


def _is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version and "%" not in text
    except ValueError:
        return False

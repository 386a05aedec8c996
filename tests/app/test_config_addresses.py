"""Addresses of a configuration: what is read, what is refused, and that refusals never repeat the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config_addresses import (
    AddressFault,
    is_network,
    looks_external,
    read_backend_url,
    read_bind,
    read_etcd_endpoint,
)


@pytest.mark.req("CFG-05", "CFG-06")
@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("http://h:2379", "http://h:2379"),
        ("https://etcd-0.dynamo.svc:2379", "https://etcd-0.dynamo.svc:2379"),
        ("h:2379", "http://h:2379"),
        ("10.0.0.4:2379", "http://10.0.0.4:2379"),
        ("[::1]:2379", "http://[::1]:2379"),
        ("https://[FD00::1]:2379", "https://[fd00::1]:2379"),
        ("HTTP://Host:1", "http://host:1"),
        ("http://h:2379/", "http://h:2379"),
    ],
)
def test_endpoint_is_normalised(text: str, normal: str) -> None:
    assert str(read_etcd_endpoint(text)) == normal


@pytest.mark.req("CFG-05")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "http://h",
        "::1:2379",
        "http://::1:2379",
        "[::1]",
        "[::1]2379",
        "[h]:2379",
        "[::1%eth0]:2379",
        ":2379",
        "h:0",
        "h:65536",
        "h:x",
        "h:+1",
        "h: 1",
        "ftp://h:1",
        "unix:///run/etcd",
        "a b:1",
        "h\n:1",
        "ü:1",
        "-h:1",
    ],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(AddressFault):
        read_etcd_endpoint(text)


@pytest.mark.req("CFG-08")
@pytest.mark.parametrize(
    "text",
    [
        "http://h:2379/?",
        "http://h:2379?",
        "http://h:2379#",
        "http://h:2379/#",
        "http://h:2379/v3",
        "h:2379//",
    ],
)
def test_endpoint_with_query_fragment_or_path_is_refused(text: str) -> None:
    with pytest.raises(AddressFault, match=r"query|path"):
        read_etcd_endpoint(text)


@pytest.mark.req("CFG-07")
@pytest.mark.parametrize(
    "text", ["http://user@h:1", "http://user:s3cret@h:1", "user:s3cret@h:1", "https://@h:1"]
)
def test_endpoint_with_credentials_is_refused_without_repeating_them(text: str) -> None:
    with pytest.raises(AddressFault, match="user name or password") as caught:
        read_etcd_endpoint(text)
    assert "s3cret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        ("127.0.0.1:8080", True),
        ("127.9.9.9:0", True),
        ("[::1]:80", True),
        ("localhost:80", True),
        ("unix:/run/p", True),
        ("0.0.0.0:8080", False),
        ("[::]:80", False),
        ("10.0.0.1:80", False),
        ("myhost:80", False),
    ],
)
def test_bind_knows_whether_other_machines_can_reach_it(text: str, is_loopback: bool) -> None:
    assert read_bind(text).is_loopback is is_loopback


@pytest.mark.parametrize(
    "text", ["", "8080", ":8080", "::1:80", "unix:relative", "unix:/" + "x" * 120, "h:99999"]
)
def test_what_is_no_bind_is_refused(text: str) -> None:
    with pytest.raises(AddressFault):
        read_bind(text)


@pytest.mark.parametrize(
    ("text", "server", "prefix"),
    [
        ("http://h:8000", "http://h:8000", ""),
        ("https://h", "https://h:443", ""),
        ("http://[::1]/", "http://[::1]:80", ""),
        ("http://h:1/team/a/", "http://h:1", "/team/a"),
    ],
)
def test_backend_url_is_server_and_prefix(text: str, server: str, prefix: str) -> None:
    endpoint, found = read_backend_url(text)
    assert (str(endpoint), found) == (server, prefix)


@pytest.mark.parametrize(
    "text",
    [
        "h:8000",
        "ftp://h",
        "http://u:p@h",
        "http://h/v1",
        "http://h/v1/",
        "http://h?x",
        "http://h/a b",
        "http://",
    ],
)
def test_backend_url_that_would_fail_every_request_is_refused(text: str) -> None:
    with pytest.raises(AddressFault):
        read_backend_url(text)


@pytest.mark.parametrize("host", ["8.8.8.8", "2001:4860:4860::8888", "etcd.example.com", "etcd.example.com."])
def test_public_hosts_look_external(host: str) -> None:
    assert looks_external(host)


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "::1", "etcd", "etcd-0.dynamo.svc", "e.d.svc.cluster.local", "etcd.internal"]
)
def test_inner_hosts_do_not_look_external(host: str) -> None:
    assert not looks_external(host)


def test_network_needs_a_length() -> None:
    assert is_network("10.0.0.0/8") and is_network("fd00::/8") and is_network("10.1.2.3/8")
    assert not is_network("10.0.0.0") and not is_network("10.0.0.0/33") and not is_network("x/8")


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_a_fault(text: str) -> None:
    for read in (read_etcd_endpoint, read_bind, read_backend_url):
        try:
            assert read(text)
        except AddressFault:
            continue

"""Paths and URIs of cards: which place each names, and what is no place at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from router.prompt.artifact_source import (
    HubFile,
    LocalFile,
    WebFile,
    rank_of,
    scheme_of,
    source_of,
    web_url,
)

RECORDED = "http://127.0.0.1:24563/v1/metadata/dynamo/backend/generate/tiny-chat/_base/tokenizer.json"


@pytest.mark.req("ART-03", "ART-04", "ART-05")
@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("/models/tiny/tokenizer.json", LocalFile("/models/tiny/tokenizer.json")),
        ("file:///models/tiny/tokenizer.json", LocalFile("/models/tiny/tokenizer.json")),
        ("file://localhost/models/a%20b", LocalFile("/models/a b")),
        (RECORDED, WebFile(URL(RECORDED))),
        ("https://worker.example/x", WebFile(URL("https://worker.example/x"))),
        ("hf://Qwen/Qwen3-0.6B/tokenizer.json", HubFile("Qwen/Qwen3-0.6B", "main", "tokenizer.json")),
        ("hf://Qwen/Qwen3@a1b2/sub/t.json", HubFile("Qwen/Qwen3", "a1b2", "sub/t.json")),
        ("hf://org/m@refs%2Fpr%2F1/t.json", HubFile("org/m", "refs/pr/1", "t.json")),
        ("hf://gpt2/tokenizer.json", HubFile("gpt2", "main", "tokenizer.json")),
        ("HF://gpt2@main/tokenizer.json", HubFile("gpt2", "main", "tokenizer.json")),
    ],
)
def test_places(text: str, source: object) -> None:
    assert source_of(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tokenizer.json",
        "./tokenizer.json",
        "../../etc/passwd",
        "file://otherhost/etc/passwd",
        "file:///models/%00",
        "ftp://host/x",
        "s3://bucket/x",
        "http://",
        "http:///x",
        "http://user:secret@host/x",
        "http://user@host/x",
        "http://host:99999/x",
        "http://[::1/x",
        "hf://",
        "hf://repo",
        "hf://../../tokenizer.json",
        "hf://org/../x/y",
        "hf://org/model/../../x",
        "hf://org/model@/x",
        "hf://org/model/x?y=1",
        "hf://org/model/x#y",
        "hf://user:secret@evil/x y",
    ],
)
def test_what_is_no_place(text: str) -> None:
    assert source_of(text) is None
    assert scheme_of(text) == "other"


def test_the_address_of_a_hub_file() -> None:
    file = HubFile("org/model", "refs/pr/1", "sub/t.json")
    assert (
        str(file.url("https://hub.example/"))
        == "https://hub.example/org/model/resolve/refs%2Fpr%2F1/sub/t.json"
    )
    assert str(HubFile("gpt2", "main", "t").url("http://h:8/m")) == "http://h:8/m/gpt2/resolve/main/t"
    with pytest.raises(ValueError, match="endpoint"):
        file.url("ftp://hub.example")


def test_this_machine_comes_before_workers_and_workers_before_the_hub() -> None:
    texts = ["hf://gpt2/t", RECORDED, "/t"]
    assert [rank_of(source_of(text)) for text in texts] == [2, 1, 0]
    assert [scheme_of(text) for text in texts] == ["hf", "http", "file"]


@given(
    st.text(max_size=40), st.sampled_from(["", "/", "file://", "http://", "https://", "hf://", "hf://a/b@"])
)
def test_no_text_raises_and_no_hub_file_leaves_its_repository(rest: str, scheme: str) -> None:
    source = source_of(scheme + rest)
    if isinstance(source, HubFile):
        url = source.url("https://hub.example")
        assert url.host == "hub.example" and ".." not in url.parts and not url.query_string
    if isinstance(source, WebFile):
        assert web_url(str(source.url)) is not None

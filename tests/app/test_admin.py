"""The admin application: who may ask, what it says, what it takes, one audit line for each request."""

import asyncio
import io
import json
import threading
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from app.admin import EXPLANATIONS_WAITING_MAX
from app.config_load import effective_settings
from app.config_model import MASK
from app.config_yaml import FILE_BYTES_MAX
from app.reloading import NotAdopted
from projections.events.ports import LogCorrupt, OffsetGone
from tests.app.admin_site import TOKEN, a_config, a_site
from tests.router.rig import until

SECRETS = ("admin-secret", "backend-secret", "etcd-password", "client.key")
ETCD = {
    "enabled": True,
    "discovery": {
        "source": "etcd",
        "etcd": {
            "endpoints": ["https://etcd:2379"],
            "tls": {"ca_cert": "ca.pem", "client_cert": "client.pem", "client_key": "client.key"},
            "auth": {"username": "router", "password": "etcd-password"},
        },
    },
}


# Admission and audit -------------------------------------------------------------------


@pytest.mark.req("ADM-01")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/dynamo/workers"),
        ("GET", "/admin/config"),
        ("PUT", "/admin/config"),
        ("GET", "/admin/picks/last"),
        ("GET", "/admin/nothing"),
        ("DELETE", "/admin/config"),
    ],
)
async def test_nothing_is_answered_without_authentication_and_the_audit_line_says_so(
    method: str, path: str
) -> None:
    async with a_site() as site:
        with capture_logs() as captured:
            answer = await site.ask(path, method, headers={})
        assert answer.status == 401
        assert answer.document["error"]["code"] == "invalid_api_key"
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert site.proposed == []
    [line] = [entry for entry in captured if entry["event"] == "admin request"]
    assert (line["who"], line["method"], line["path"], line["status"]) == ("nobody", method, path, 401)


@pytest.mark.req("ADM-01")
async def test_every_admitted_request_leaves_one_audit_line_without_its_query() -> None:
    async with a_site() as site:
        with capture_logs() as captured:
            await site.ask("/admin/config?token=secret")
            await site.ask("/admin/nothing")
    lines = [entry for entry in captured if entry["event"] == "admin request"]
    assert [(entry["who"], entry["path"], entry["status"]) for entry in lines] == [
        ("bearer_token", "/admin/config", 200),
        ("bearer_token", "/admin/nothing", 404),
    ]


async def test_unknown_paths_and_methods_are_told_in_the_api_s_shape() -> None:
    async with a_site() as site:
        missing = await site.ask("/admin/nothing")
        assert (missing.status, missing.document["error"]["code"]) == (404, "not_found")
        wrong = await site.ask("/admin/config", "POST")
        assert (wrong.status, wrong.document["error"]["code"]) == (405, "method_not_allowed")
        assert wrong.headers["Allow"] == "GET, PUT"
        assert (await site.ask("/admin/config", "HEAD")).status == 200


async def test_changed_authentication_holds_for_the_next_request() -> None:
    async with a_site() as site:
        assert (await site.ask("/admin/config")).status == 200
        site.config = a_config(admin={"auth": {"method": "bearer_token", "token": "another"}})
        assert (await site.ask("/admin/config")).status == 401
        assert (await site.ask("/admin/config", headers={"Authorization": "Bearer another"})).status == 200


async def test_admin_stays_closed_when_settings_say_none_but_the_process_listens_to_others() -> None:
    open_to_all = a_config(server={"bind_address": "0.0.0.0:8080"})
    async with a_site(open_to_all) as site:
        site.config = a_config(admin={"auth": {"method": "none"}})
        answer = await site.ask("/admin/config", headers={})
        assert answer.status == 401
        assert "beyond loopback" in answer.document["error"]["message"]


# The fleet -----------------------------------------------------------------------------


@pytest.mark.req("ADM-02")
async def test_disabled_discovery_is_told_with_empty_lists() -> None:
    async with a_site() as site:
        site.script.worker(7)
        site.adopt(enabled=False, source="file")
        answer = await site.ask("/admin/dynamo/workers")
        assert answer.status == 200
        assert answer.document["enabled"] is answer.document["connected"] is False
        assert answer.document["workers"] == answer.document["subscriptions"] == []
        assert answer.document["load_publishers"] == 0


@pytest.mark.req("ADM-02")
async def test_a_source_whose_extra_is_missing_is_not_found_until_it_is_installed() -> None:
    async with a_site(a_config(dynamo=ETCD)) as site:
        site.adopt()
        assert (await site.ask("/admin/dynamo/workers")).status == 404
        for extra in ("etcd", "etcd3"):
            site.extras = frozenset((extra,))
            assert (await site.ask("/admin/dynamo/workers")).status == 200


async def test_a_large_fleet_is_told_whole_without_holding_up_the_loop() -> None:
    async with a_site() as site:
        site.adopt(source="file")
        for number in range(1_500):
            site.script.worker(number)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        answer = await site.ask("/admin/dynamo/workers")
        other.cancel()
        assert [row["worker_id"] for row in answer.document["workers"]] == [*map(str, range(1_500))]
        assert turns >= 10


# Reading settings ----------------------------------------------------------------------


@pytest.mark.req("CFG-18", "CFG-19")
async def test_settings_are_read_back_whole_with_every_secret_masked() -> None:
    config = a_config(dynamo=ETCD)
    async with a_site(config) as site:
        answer = await site.ask("/admin/config")
        assert answer.document == effective_settings(config)
        etcd = answer.document["dynamo"]["discovery"]["etcd"]
        assert etcd["auth"]["password"] == etcd["tls"]["client_key"] == MASK
        assert (etcd["tls"]["ca_cert"], etcd["tls"]["client_cert"]) == ("ca.pem", "client.pem")
        for secret in SECRETS:
            assert secret not in answer.text


# Putting settings ----------------------------------------------------------------------


@pytest.mark.req("REL-13")
@pytest.mark.parametrize("as_yaml", [False, True])
async def test_a_read_back_can_be_put_with_masked_secrets_kept_even_for_other_endpoints(
    as_yaml: bool,
) -> None:
    async with a_site(a_config(dynamo=ETCD)) as site:
        document = (await site.ask("/admin/config")).document
        document["dynamo"]["discovery"]["etcd"]["endpoints"] = ["https://other:2379"]
        kind = "application/yaml" if as_yaml else "application/json"
        body = yaml.safe_dump(document) if as_yaml else json.dumps(document)
        answer = await site.ask("/admin/config", "PUT", data=body, headers={**TOKEN, "Content-Type": kind})
        assert (answer.status, answer.document["version"]) == (200, 7)
        assert answer.document["changed"] == ["dynamo.discovery.etcd.endpoints"]
        [(adoptable, config)] = site.proposed
        etcd = config.dynamo.discovery.etcd
        assert etcd.endpoints == ("https://other:2379",)
        assert etcd.auth is not None and etcd.auth.password.get_secret_value() == "etcd-password"
        token = config.admin.auth.token
        assert token is not None and token.get_secret_value() == "admin-secret"
        assert answer.document["digest"] == adoptable.digest.hex()
        for secret in SECRETS:
            assert secret not in adoptable.settings
            assert secret not in answer.text


async def test_the_answer_names_what_waits_for_a_restart_and_what_deserves_a_look() -> None:
    async with a_site() as site:
        document = (await site.ask("/admin/config")).document
        document["server"]["bind_address"] = ["127.0.0.1:9999"]
        document["log"]["retention"]["age"] = "1h"
        answer = await site.ask("/admin/config", "PUT", json=document)
        assert answer.status == 200
        assert "server.bind_address" in answer.document["needs_process_restart"]
        assert [found["path"] for found in answer.document["warnings"]] == ["log.retention.age"]


@pytest.mark.req("REL-17")
@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ('{"server": {"bind_adress": "x"}}', "server.bind_adress", "unknown key"),
        ('{"dynamo": {"load": {"max_staleness": "1us"}}}', "dynamo.load.max_staleness", "must lie between"),
        (
            '{"backends": [{"name": "new", "url": "http://a:1", "api_key": "***"}]}',
            "backends[0].api_key",
            "masked",
        ),
        ("{", None, "not JSON"),
        ("[1]", None, "must be a mapping"),
        ("a: [", None, "not valid YAML"),
        ("[" * 2000 + "]" * 2000, None, ""),
        ('{"cache": ' * 900 + "1" + "}" * 900, None, ""),
        ("\xff\xfe", None, ""),
    ],
)
async def test_a_configuration_that_is_refused_is_told_and_proposes_nothing(
    body: str, param: str | None, words: str
) -> None:
    async with a_site() as site:
        answer = await site.ask("/admin/config", "PUT", data=body.encode("latin-1"))
        error = answer.document["error"]
        assert (answer.status, error["code"], error["type"]) == (
            400,
            "invalid_request",
            "invalid_request_error",
        )
        if param is not None:
            assert error["param"] == param
        assert words in error["message"]
        assert error["findings"]
        assert site.proposed == []
        assert (await site.ask("/admin/config")).status == 200


async def test_nothing_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOLEN", "from-the-environment")
    async with a_site() as site:
        document = (await site.ask("/admin/config")).document
        document["backends"][0]["models"] = ["${STOLEN}"]
        assert (await site.ask("/admin/config", "PUT", json=document)).status == 200
        assert site.proposed[0][1].backends[0].models == ("${STOLEN}",)


async def test_a_body_above_the_ceiling_is_not_read() -> None:
    async with a_site() as site:
        answer = await site.ask("/admin/config", "PUT", data=io.BytesIO(b"#" * (FILE_BYTES_MAX + 1)))
        assert (answer.status, answer.document["error"]["code"]) == (413, "payload_too_large")

        async def chunks() -> Any:
            for _ in range(20):
                yield b"#" * (FILE_BYTES_MAX // 16)

        answer = await site.ask("/admin/config", "PUT", data=chunks())
        assert answer.status == 413
        assert site.proposed == []


async def test_a_compressed_body_is_refused() -> None:
    async with a_site() as site:
        headers = {**TOKEN, "Content-Encoding": "gzip"}
        answer = await site.ask("/admin/config", "PUT", data=b"{}", headers=headers)
        assert (answer.status, answer.document["error"]["code"]) == (415, "unsupported_encoding")


async def test_an_owner_that_does_not_answer_is_told() -> None:
    async with a_site() as site:

        def silent() -> int:
            raise NotAdopted("the log's owner did not adopt it within 10 s")

        site.answer_proposal = silent
        document = (await site.ask("/admin/config")).document
        answer = await site.ask("/admin/config", "PUT", json=document)
        assert (answer.status, answer.document["error"]["code"]) == (504, "upstream_timeout")
        assert "within 10 s" in answer.document["error"]["message"]


async def test_two_who_put_at_once_are_taken_one_after_the_other() -> None:
    async with a_site() as site:
        inside = 0

        def version() -> int:
            nonlocal inside
            inside += 1
            assert inside == 1
            inside -= 1
            return len(site.proposed)

        site.answer_proposal = version
        document = (await site.ask("/admin/config")).document
        answers = await asyncio.gather(*[site.ask("/admin/config", "PUT", json=document) for _ in range(4)])
        assert sorted(answer.document["version"] for answer in answers) == [1, 2, 3, 4]


# Picks ---------------------------------------------------------------------------------


@pytest.mark.req("EVS-07")
async def test_a_pick_is_explained_as_replay_does_whatever_is_in_it() -> None:
    async with a_site() as site:
        site.explanations["last"] = {"pick": {"request_id": "r1"}, "odd": "\ud800", "big": 1 << 70}
        answer = await site.ask("/admin/picks/last")
        assert answer.status == 200
        assert answer.document["pick"] == {"request_id": "r1"}
        assert answer.document["big"] == 1 << 70


@pytest.mark.parametrize("name", ["nobody", "x" * 200, "%00", "%F0%9F%98%80"])
async def test_an_unknown_pick_is_not_found(name: str) -> None:
    async with a_site() as site:
        answer = await site.ask(f"/admin/picks/{name}")
        assert (answer.status, answer.document["error"]["code"]) == (404, "not_found")


async def test_a_pick_that_retention_took_is_not_found_and_a_broken_log_is_our_fault() -> None:
    async with a_site() as site:
        site.explanations["old"] = OffsetGone(1, 9)
        site.explanations["broken"] = LogCorrupt("segment 0 byte 7: /srv/data")
        assert (await site.ask("/admin/picks/old")).status == 404
        with capture_logs() as captured:
            answer = await site.ask("/admin/picks/broken")
        assert (answer.status, answer.document["error"]["code"]) == (500, "internal_error")
        assert "/srv/data" not in answer.text
        assert "segment 0 byte 7" in next(e["cause"] for e in captured if e["log_level"] == "error")


async def test_one_pick_is_explained_at_a_time_and_few_wait() -> None:
    async with a_site() as site:
        let_go, lock, running, most = threading.Event(), threading.Lock(), 0, 0

        def slow() -> dict[str, Any]:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            assert let_go.wait(30)
            with lock:
                running -= 1
            return {}

        site.explanations["last"] = slow
        asked = [
            asyncio.create_task(site.ask("/admin/picks/last")) for _ in range(EXPLANATIONS_WAITING_MAX + 1)
        ]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status for task in done] == [429]
        let_go.set()
        statuses = sorted([(await task).status for task in asked])
        assert statuses == [200] * EXPLANATIONS_WAITING_MAX + [429]
        assert most == 1


async def test_a_client_that_leaves_costs_no_second_reading_and_is_audited() -> None:
    async with a_site() as site:
        let_go, began = threading.Event(), threading.Event()

        def slow() -> dict[str, Any]:
            began.set()
            assert let_go.wait(30)
            return {}

        site.explanations["slow"] = slow
        site.explanations["quick"] = {"pick": 1}
        with capture_logs() as captured:
            leaving = asyncio.create_task(site.ask("/admin/picks/slow"))
            await asyncio.to_thread(began.wait, 30)
            leaving.cancel()
            staying = asyncio.create_task(site.ask("/admin/picks/quick"))
            await until(lambda: any(entry.get("status") == 499 for entry in captured))
            assert not staying.done(), "the first reading still runs"
            let_go.set()
            assert (await staying).document == {"pick": 1}


# State ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "status", "found"),
    [
        ("", 200, "end"),
        ("?at=17", 200, "17"),
        ("?at=nonsense", 400, "invalid_request"),
        ("?at=", 400, "invalid_request"),
        (f"?at={'1' * 200}", 400, "invalid_request"),
        ("?at=gone", 404, "not_found"),
    ],
)
async def test_the_state_at_a_mark_is_told_or_what_is_wrong_with_the_mark(
    query: str, status: int, found: str
) -> None:
    async with a_site() as site:
        answer = await site.ask(f"/admin/state{query}")
        assert answer.status == status
        told = answer.document["mark"] if status == 200 else answer.document["error"]["code"]
        assert told == found

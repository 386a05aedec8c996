"""Discovery on a real etcd with client certificates, users and narrow permissions."""

from __future__ import annotations

import asyncio

import pytest

from ingest.discovery.settings import EtcdAuth, EtcdTls
from projections.events.discovery import KeyPut, PassSettled
from tests.live.certificates import Authority
from tests.live.conftest import EtcdMaker
from tests.live.discovery_watch import LiveWatch, etcd_settings, instance
from tests.live.peers import EtcdServer
from tests.live.peers import EtcdTls as ServerTls

pytestmark = pytest.mark.live("etcd")

in_thread = asyncio.to_thread


def _client_tls(server: EtcdServer, server_name: str | None = None) -> EtcdTls:
    assert server.tls is not None
    return EtcdTls(
        str(server.tls.ca), str(server.tls.client.certificate), str(server.tls.client.key), server_name
    )


@pytest.mark.req("ETCD-17")
async def test_client_certificate_opens_a_server_that_demands_one(etcd_mtls: EtcdServer) -> None:
    await in_thread(etcd_mtls.put, instance(1), b"{}")
    async with LiveWatch(etcd_settings(etcd_mtls.endpoint, tls=_client_tls(etcd_mtls))) as watch:
        await watch.settled()
        await in_thread(etcd_mtls.put, instance(2), b"{}")
        await watch.until(lambda: watch.workers() == {"1", "2"})


@pytest.mark.req("ETCD-17")
async def test_without_a_client_certificate_or_with_another_authority_there_is_no_connection(
    etcd_mtls: EtcdServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert etcd_mtls.tls is not None
    stranger = Authority(tmp_path_factory.mktemp("stranger"), "stranger")
    identity = stranger.client()
    for tls in (
        EtcdTls(str(etcd_mtls.tls.ca)),
        EtcdTls(str(etcd_mtls.tls.ca), str(identity.certificate), str(identity.key)),
        EtcdTls(str(stranger.ca), str(etcd_mtls.tls.client.certificate), str(etcd_mtls.tls.client.key)),
        EtcdTls(str(etcd_mtls.tls.ca) + ".missing"),
    ):
        async with LiveWatch(etcd_settings(etcd_mtls.endpoint, tls=tls)) as watch:
            await watch.until(lambda watch=watch: len(watch.ends()) >= 1)  # type: ignore[misc]
            assert watch.of(PassSettled) == []
            assert set(watch.ends()) <= {"unreachable", "stream"}
            assert not any("secret" in state.detail for state in watch.states)


@pytest.mark.req("CFG-21", "ETCD-17")
async def test_server_name_replaces_the_name_that_is_checked(
    make_etcd: EtcdMaker, authority: Authority
) -> None:
    """The second server's certificate is good for one name alone, which no address says."""
    only_name = authority.server("named", dns_names=("etcd.fleet.test",))
    server = await in_thread(lambda: make_etcd(tls=ServerTls(authority.ca, only_name, authority.client())))
    good, bad = _client_tls(server, "etcd.fleet.test"), _client_tls(server, "other.fleet.test")
    async with LiveWatch(etcd_settings(server.endpoint, tls=good)) as watch:
        await watch.settled()
    async with LiveWatch(etcd_settings(server.endpoint, tls=bad)) as watch:
        await watch.until(lambda: len(watch.ends()) >= 1)
        assert watch.ends()[0] == "unreachable"


@pytest.mark.req("ETCD-17")
async def test_user_and_password_read_and_expired_tokens_are_fetched_anew(
    etcd_with_users: EtcdServer,
) -> None:
    """Tokens of this server live for two seconds: a watch outlives its own, the next pass has a new one."""
    await in_thread(etcd_with_users.put, instance(1), b"{}")
    auth = EtcdAuth("reader", "reader-secret")
    async with LiveWatch(etcd_settings(etcd_with_users.endpoint, auth=auth)) as watch:
        await watch.settled()
        await asyncio.sleep(4)
        await in_thread(etcd_with_users.restart)
        await watch.settled(2)
        assert watch.workers() == {"1"}


@pytest.mark.req("ETCD-17")
@pytest.mark.parametrize("auth", [EtcdAuth("reader", "wrong"), EtcdAuth("nobody", "x"), None])
async def test_wrong_or_missing_login_is_unauthenticated_and_shows_no_password(
    etcd_with_users: EtcdServer, auth: EtcdAuth | None
) -> None:
    async with LiveWatch(etcd_settings(etcd_with_users.endpoint, auth=auth)) as watch:
        await watch.until(lambda: len(watch.ends()) >= 2)
        assert set(watch.ends()) == {"unauthenticated"}
        assert not any("wrong" in state.detail for state in watch.states)


async def test_changed_password_in_the_settings_is_not_needed_where_users_are_off(etcd: EtcdServer) -> None:
    await in_thread(etcd.put, instance(1), b"{}")
    async with LiveWatch(etcd_settings(etcd.endpoint, auth=EtcdAuth("reader", "x"))) as watch:
        await watch.settled()
        assert watch.workers() == {"1"}


@pytest.mark.req("ETCD-03", "ETCD-08")
async def test_user_without_the_sources_gets_everything_else(etcd_with_users: EtcdServer) -> None:
    put = etcd_with_users.put
    await in_thread(put, instance(1), b"{}")
    await in_thread(put, "v1/event_channels/namespace/prod/topic/kv_metrics/1", b"{}")
    await in_thread(put, "v1/event_sources/namespace/prod/topic/kv-events/1", b"{}")
    auth = EtcdAuth("narrow", "narrow-secret")
    async with LiveWatch(etcd_settings(etcd_with_users.endpoint, auth=auth)) as watch:
        await watch.settled()
        assert {fact.keyspace for fact in watch.of(KeyPut)} == {1, 3}
        assert watch.of(PassSettled)[0].unwatched == (4,)
        assert [notice.what for notice in watch.notices] == ["event sources may not be read"]
        await in_thread(put, instance(2), b"{}")
        await watch.until(lambda: watch.workers() == {"1", "2"})
        assert watch.ends() == []


async def test_user_who_may_read_nothing_is_refused_and_tried_again(etcd_with_users: EtcdServer) -> None:
    await in_thread(etcd_with_users.add_user, "blind", "blind-secret", ["elsewhere/"])
    auth = EtcdAuth("blind", "blind-secret")
    async with LiveWatch(etcd_settings(etcd_with_users.endpoint, auth=auth)) as watch:
        await watch.until(lambda: len(watch.ends()) >= 2)
        assert set(watch.ends()) == {"permission"}
        await in_thread(
            etcd_with_users.call,
            "auth/role/grant",
            {"name": "blind-role", "perm": {"key": "djEv", "range_end": "djEw", "permType": "READ"}},
        )
        await watch.settled()


async def test_look_for_siblings_beyond_the_own_prefixes_is_silent_where_it_is_not_permitted(
    etcd_with_users: EtcdServer,
) -> None:
    prefixes = [
        "v1/instances/prod/",
        "v1/mdc/prod/",
        "v1/event_channels/namespace/prod/",
        "v1/event_sources/namespace/prod/",
    ]
    await in_thread(etcd_with_users.add_user, "own", "own-secret", prefixes)
    await in_thread(etcd_with_users.put, instance(1, "prod-b"), b"{}")
    auth = EtcdAuth("own", "own-secret")
    async with LiveWatch(etcd_settings(etcd_with_users.endpoint, auth=auth)) as watch:
        await watch.settled()
        await in_thread(etcd_with_users.put, instance(1), b"{}")
        await watch.until(lambda: watch.workers() == {"1"})
        assert (watch.notices, watch.ends()) == ([], [])

"""Settings in a running process: proposed, adopted in the log, in force for every part, secrets kept out."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import reloading
from app.config_adoption import adoptable_settings
from app.config_load import LoadedConfig, load_config
from app.reloading import ADOPT_S_MAX, WAITING_MAX, NotAdopted, Reloading
from projections.events.control import ConfigAdopted, ConfigProposed, PickSettings
from projections.events.discovery import KeysDropped, PassBegan
from projections.events.held import SettingsHeld
from projections.events.picks import PickMade
from tests.app.main_site import Run, Site, site_in, until
from tests.app.two_processes import two_running


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_in(tmp_path) as site:
        yield site


async def changed(site: Site, run: Run, how: Callable[[dict[str, Any]], object]) -> int:
    """Write a changed configuration file; the version once it is in force."""
    config = copy.deepcopy(site.config)
    how(config)
    before = run.process.reloading.loaded.config
    site.write(config)
    await until(lambda: run.process.reloading.loaded.config != before, "in force")
    return run.process.reloading.version


@pytest.mark.req("REL-02", "REL-17", "CFG-18")
async def test_a_changed_file_is_in_force_at_once_and_picks_name_its_version(site: Site) -> None:
    async with site.running() as run:
        await run.chat("before")
        version = await changed(
            site, run, lambda config: config["dynamo"]["load"].update(max_staleness="700ms")
        )
        await run.chat("after")
        assert (await run.metrics())['picklog_config_reloads_total{result="adopted"}'] == 2
    assert version == 2
    assert {p.question.request_id: p.config_version for p in site.facts(PickMade)} == {
        "before": 1,
        "after": 2,
    }
    adopted = site.facts(ConfigAdopted)
    assert [(one.version, one.proposed_by, one.pick.max_staleness_us) for one in adopted] == [
        (1, "start", 3_000_000),
        (2, "file", 700_000),
    ]
    assert len(site.facts(PassBegan)) == 1, "discovery goes on undisturbed"


@pytest.mark.req("RED-24")
async def test_another_picker_holds_for_the_requests_behind_its_adoption_even_under_traffic(
    site: Site,
) -> None:
    async with site.running() as run:
        stopping = asyncio.Event()
        sent = 0

        async def traffic(client: int) -> None:
            nonlocal sent
            while not stopping.is_set():
                sent += 1
                assert (await run.chat(f"{client}-{sent}"))[0] == 200

        clients = [asyncio.create_task(traffic(number)) for number in range(3)]
        for version, name in ((2, "round_robin"), (3, "load_based")):
            before = sent
            await until(lambda before=before: sent > before + 4, "picks")  # type: ignore[misc]
            await changed(site, run, lambda config, name=name: config["dynamo"].update(picker=name))  # type: ignore[misc]
            assert run.process.reloading.version == version
        before = sent
        await until(lambda: sent > before + 4, "picks")
        stopping.set()
        await asyncio.gather(*clients)
    pickers = {one.version: one.pick.picker for one in site.facts(ConfigAdopted)}
    assert pickers == {1: "load_based", 2: "round_robin", 3: "load_based"}
    versions = [pick.config_version for pick in site.facts(PickMade)]
    assert len(versions) == sent and set(versions) == {1, 2, 3}
    assert versions == sorted(versions)
    report = site.verified()
    assert (report.picks, report.different, report.equal) == (sent, 0, sent)


@pytest.mark.req("REL-02")
async def test_the_process_log_and_the_metrics_follow_their_settings_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[str] = []
    monkeypatch.setattr(reloading, "set_up_process_log", lambda settings: levels.append(settings.level.value))
    async with site.running() as run:
        await changed(site, run, lambda config: config.update(logging={"level": "debug"}))
        await changed(site, run, lambda config: config.update(metrics={"enabled": False}))
        assert levels == ["debug", "info"], "the second file says nothing of the log"
        status, document = await run.get("/metrics")
        assert (status, document["error"]["code"]) == (404, "not_found")


@pytest.mark.req("REL-04", "REL-05", "RED-23", "CFG-01")
async def test_discovery_is_switched_off_and_on_without_a_restart(site: Site) -> None:
    async with site.running() as run:
        status = run.process.folding.tail.fold.state.status
        assert status.is_enabled()
        await changed(site, run, lambda config: config["dynamo"].update(enabled=False))
        await until(lambda: not run.process.folding.tail.fold.state.registry.fleet.workers, "no fleet")
        assert not status.is_enabled()
        assert (await run.get("/ready"))[0] == 503
        await changed(site, run, lambda config: None)
        await run.is_ready()
        assert status.is_enabled()
        assert (await run.chat())[0] == 200
    assert KeysDropped in {type(fact) for fact in site.facts(KeysDropped)}
    assert site.verified().different == 0


async def test_a_changed_secret_is_in_force_without_a_new_version(site: Site) -> None:
    def keys(config: dict[str, Any], key: str) -> None:
        config["api_keys"] = {"mode": "blocking", "keys": [{"id": "one", "key": key}]}

    keys(site.config, "first-secret")
    site.write(site.config)
    async with site.running(ready=False) as run:
        await until(lambda: run.process.reloading.version == 1, "adopted")
        assert (await run.chat())[0] == 401
        assert await changed(site, run, lambda config: keys(config, "second-secret")) == 1
        assert run.process.service is not None
        (key,) = run.process.service.frontage.settings.keys
        assert key.key == "second-secret"
    assert len(site.facts(ConfigAdopted)) == 1
    for path in site.data.rglob("*"):
        assert not path.is_file() or b"-secret" not in path.read_bytes(), path


@pytest.mark.req("REL-17")
@pytest.mark.field("B-142")
async def test_a_refused_file_changes_nothing(site: Site) -> None:
    async with site.running() as run:
        wrong = copy.deepcopy(site.config)
        wrong["dynamo"]["load"]["max_staleness"] = "soon"
        before = run.process.reloading.loaded.config
        site.write(wrong)
        refused = 'picklog_config_reloads_total{result="refused"}'
        told = run.process.observer.registry.get_sample_value
        labels = {"result": "refused"}
        await until(lambda: told("picklog_config_reloads_total", labels), "the refusal is counted")
        assert (await run.metrics())[refused] == 1
        assert run.process.reloading.loaded.config is before
        assert (await run.chat())[0] == 200
    assert len(site.facts(ConfigAdopted)) == 1


@pytest.mark.req("CFG-19", "REL-17")
async def test_put_settings_are_proposed_in_the_log_and_answered_when_adopted(site: Site) -> None:
    async with site.running() as run:
        shown = (await run.get("/admin/config"))[1]
        shown["dynamo"]["load"]["max_staleness"] = "2s"
        status, told = await run.put_config(shown)
        assert (status, told["version"]) == (200, 2)
        assert run.process.service is not None
        assert run.process.service.log.settings().pick.max_staleness_us == 2_000_000
        again = await run.put_config(shown)
        assert (again[0], again[1]["version"]) == (200, 2), "the same once more is no new version"
    (first, second) = site.facts(ConfigProposed)
    assert first.digest == second.digest
    assert site.facts(ConfigAdopted)[-1].proposed_by == first.replica.hex()


async def test_two_changes_in_one_moment_are_two_versions_and_the_later_holds(site: Site) -> None:
    async with site.running() as run:
        reloading = run.process.reloading
        for staleness in ("900ms", "800ms", "900ms"):
            site.config["dynamo"]["load"]["max_staleness"] = staleness
            site.write(site.config)
            reloading._put_forward(load_config(site.file, environment={}).config)
        await until(lambda: reloading.version == 4, "all three are in force, one after another")
        assert reloading.loaded.config.dynamo.load.max_staleness.us == 900_000
    adopted = [(one.version, one.pick.max_staleness_us) for one in site.facts(ConfigAdopted)]
    assert adopted == [(1, 3_000_000), (2, 900_000), (3, 800_000), (4, 900_000)]


def router_file(site: Site, how: Callable[[dict[str, Any]], object]) -> LoadedConfig:
    """A router's own file beside the site's."""
    config = copy.deepcopy(site.config)
    how(config)
    file = site.folder / "router.yaml"
    file.write_text(yaml.safe_dump(config))
    return load_config(file, environment={})


def with_key(config: dict[str, Any], key: str) -> None:
    config["api_keys"] = {"mode": "blocking", "keys": [{"id": "one", "key": key}]}


def key_of(run: Run) -> str:
    assert run.process.service is not None
    (key,) = run.process.service.frontage.settings.keys
    return key.key


@pytest.mark.req("REL-02", "EVS-10")
async def test_a_router_follows_what_the_owner_adopts_and_keeps_what_is_its_own(site: Site) -> None:
    with_key(site.config, "of-the-owner")
    site.write(site.config)

    def own(config: dict[str, Any]) -> None:
        with_key(config, "of-the-router")
        config["checkpoints"]["every"] = "90s"
        config["dynamo"]["load"]["max_staleness"] = "1s"

    async with two_running(site, router_file(site, own)) as (owner, router):
        reloading = router.process.reloading
        await until(lambda: reloading.version == 1, "what is in force is followed from the start")
        in_force = reloading.loaded.config
        assert in_force.dynamo.load.max_staleness.us == 3_000_000, "the owner's file is in force"
        assert in_force.checkpoints.every.us == 90_000_000, "what takes a restart is its own"
        assert in_force.server.bind_address == ("127.0.0.1:0",)
        await changed(site, owner, lambda config: config["dynamo"]["load"].update(max_staleness="700ms"))
        await until(lambda: reloading.version == 2, "it follows")
        assert reloading.loaded.config.dynamo.load.max_staleness.us == 700_000
        assert reloading.loaded.config.checkpoints.every.us == 90_000_000
        assert key_of(router) == "of-the-router"
        assert not site.facts(ConfigProposed), "following proposes nothing"
    for path in site.data.rglob("*"):
        assert not path.is_file() or b"of-the-" not in path.read_bytes(), path


@pytest.mark.req("CFG-19", "REL-17", "EVS-10")
async def test_settings_put_at_a_router_are_adopted_by_the_owner(site: Site) -> None:
    async with two_running(site) as (owner, router):
        shown = (await router.get("/admin/config"))[1]
        shown["dynamo"]["load"]["max_staleness"] = "2s"
        status, told = await router.put_config(shown)
        assert (status, told["version"]) == (200, 2)
        await until(lambda: owner.process.reloading.version == 2, "in force at the owner too")
        for run in (owner, router):
            assert run.process.reloading.loaded.config.dynamo.load.max_staleness.us == 2_000_000
        assert (await router.chat("behind-it"))[0] == 200
    (proposed,) = site.facts(ConfigProposed)
    assert proposed.replica == router.process.replica
    assert [one.proposed_by for one in site.facts(ConfigAdopted)] == ["start", proposed.replica.hex()]
    assert site.facts(PickMade)[-1].config_version == 2
    assert site.verified().different == 0


@pytest.mark.req("REL-02", "EVS-10")
async def test_a_file_that_changed_at_a_router_is_proposed(site: Site) -> None:
    loaded = router_file(site, lambda config: None)
    async with two_running(site, loaded) as (owner, router):
        await until(lambda: router.process.reloading.version == 1, "in force")
        router_file(site, lambda config: config["dynamo"].update(picker="round_robin"))
        await until(lambda: owner.process.reloading.version == 2, "adopted")
        await until(lambda: router.process.reloading.version == 2, "followed")
        for run in (owner, router):
            assert run.process.reloading.loaded.config.dynamo.picker == "round_robin"
    assert len(site.facts(ConfigProposed)) == 1
    assert len(site.facts(ConfigAdopted)) == 2


class Parts:
    """A process that is no owner: proposals go into the log and nobody answers."""

    def __init__(self) -> None:
        self.data = Path()
        self.replica = bytes(16)
        self.proposed: list[ConfigProposed] = []
        self.pick_log: Any = self
        self.held_back: list[str] = []
        self.owner: Any = self
        self.owning: Any = self
        self.is_owner = False
        self.service: Any = None
        self.observer: Any = None
        self.ingest: Any = None

    def settings(self) -> SettingsHeld:
        return SettingsHeld(1, "", b"", "{}", PickSettings("load_based", "", (), (), 0), False, 0, 0)

    def append_proposal(self, fact: ConfigProposed) -> None:
        self.proposed.append(fact)

    def held_back_by(self) -> list[str]:
        return self.held_back


def loaded(tmp_path: Path) -> LoadedConfig:
    return load_config(Site(tmp_path).file, environment={})


@pytest.mark.looptime
async def test_who_proposes_is_told_when_no_owner_adopts(tmp_path: Path) -> None:
    parts, configuration = Parts(), loaded(tmp_path)
    reloading = Reloading(configuration, parts)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(NotAdopted, match="10 s"):
        await reloading.propose(adoptable_settings(configuration.config, frozenset()), configuration.config)
    assert loop.time() - began == pytest.approx(ADOPT_S_MAX)
    assert len(parts.proposed) == 1


@pytest.mark.looptime
async def test_who_proposes_is_told_which_replica_holds_the_settings_back(tmp_path: Path) -> None:
    configuration, parts = loaded(tmp_path), Parts()
    parts.held_back = ["old:1"]
    with pytest.raises(NotAdopted, match="waits for old:1"):
        await Reloading(configuration, parts).propose(
            adoptable_settings(configuration.config, frozenset()), configuration.config
        )


async def test_a_standby_puts_the_file_that_it_began_with_before_the_owner_once(tmp_path: Path) -> None:
    parts, configuration = Parts(), loaded(tmp_path)
    reloading = Reloading(configuration, parts)
    reloading.propose_file()
    reloading.propose_file()
    (proposed,) = parts.proposed
    assert proposed.digest == adoptable_settings(configuration.config, frozenset()).digest


async def test_a_standby_whose_file_says_what_is_in_force_proposes_nothing(tmp_path: Path) -> None:
    """Addresses, and what else each process has for itself, may differ."""
    configuration = loaded(tmp_path)
    server = configuration.config.server.model_copy(update={"bind_address": ("127.0.0.1:1",)})
    owners = configuration.config.model_copy(update={"server": server})
    adoptable = adoptable_settings(owners, frozenset())
    held = SettingsHeld(3, "start", adoptable.digest, adoptable.settings, adoptable.pick, True, 5, 0)

    class Standby(Parts):
        def settings(self) -> SettingsHeld:
            return held

    parts = Standby()
    parts.observer = parts.service = parts.owning = None
    reloading = Reloading(configuration, parts)
    reloading._apply = lambda *_: None  # type: ignore[method-assign]
    reloading.propose_file()
    assert parts.proposed == []


@pytest.mark.parametrize("settings", ["", "[]", '{"backends": 5}'])
async def test_a_proposal_that_is_no_configuration_is_passed_by(tmp_path: Path, settings: str) -> None:
    reloading = Reloading(loaded(tmp_path), Parts())
    reloading.on_proposed(ConfigProposed(b"x" * 16, b"d" * 16, settings, Parts().settings().pick))
    assert reloading.version == 0


@pytest.mark.looptime
async def test_proposals_that_wait_are_bounded(tmp_path: Path) -> None:
    configuration = loaded(tmp_path)
    reloading = Reloading(configuration, Parts())
    adoptable = adoptable_settings(configuration.config, frozenset())
    some = [adoptable._replace(digest=n.to_bytes(16, "big")) for n in range(WAITING_MAX * 2)]
    proposals = [reloading.propose(one, configuration.config) for one in some]
    results = await asyncio.gather(*proposals, return_exceptions=True)
    assert {type(result) for result in results} == {NotAdopted}
    assert reloading._adopted == {}
    assert list(reloading._proposed) == [one.digest for one in some[WAITING_MAX:]]

"""Settings while the process runs: file changes and admin proposals, adopted through the log.

Whoever wants other settings proposes them; the owner adopts; when the adoption is folded,
every part is told (decisions 28, 49). Requests accepted before keep the version that they
captured. Secrets never enter the log: the proposed configuration waits here, under the
digest of its masked form, until the adoption names it. Settings that another process
proposed come out of the log, with the secrets of this process's own file.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from app.config_adoption import AdoptableSettings, adoptable_settings, adopted_config
from app.config_findings import ConfigError
from app.config_load import LoadedConfig, installed_extras, load_config, settings_digest
from app.config_model import Config
from app.config_reload import plan_reload
from app.config_rules import inactive_discovery
from app.config_watch import watch_config_files
from app.ingest_side import IngestSide
from app.observe import Observer, ReloadResult
from app.owner import Owner
from app.part_settings import (
    discovery_settings,
    prompt_settings,
    router_settings,
    subscription_settings,
)
from app.pick_log import ReplicaLog
from app.process_log import say_findings, say_refused, set_up_process_log
from projections.events.control import ConfigAdopted, ConfigProposed
from projections.events.held import SettingsHeld
from router.service import RouterService

Key = TypeVar("Key", bytes, int)
log = structlog.get_logger("picklog.settings")

WAITING_MAX = 16  # configurations kept that were proposed, or whose adoption is not folded yet, oldest out
ADOPT_S_MAX = 10.0


class Owning(Protocol):
    """The side of a process that may own the log."""

    owner: Owner
    ingest: IngestSide | None


class Parts(Protocol):
    """The parts of a process that settings reach."""

    data: Path
    replica: bytes
    pick_log: ReplicaLog
    service: RouterService | None
    observer: Observer

    @property
    def owning(self) -> Owning | None:
        """None in a process that never owns the log."""

    @property
    def is_owner(self) -> bool:
        """Whether this process adopts."""

    def append_proposal(self, fact: ConfigProposed) -> None:
        """Put it into the log."""


class NotAdopted(Exception):
    """The owner did not adopt a proposal in time; says why."""


class Reloading:
    """Keeps the configuration in force for one process."""

    def __init__(self, loaded: LoadedConfig, process: Parts) -> None:
        self.loaded = loaded
        self.version = 0
        self._at_start: Config | None = loaded.config
        self._process = process
        self._extras = installed_extras()
        self._proposed: OrderedDict[bytes, Config] = OrderedDict()  # by digest
        self._adopting: OrderedDict[int, Config] = OrderedDict()  # by version, until that is folded
        self._adopted: dict[bytes, list[asyncio.Future[int]]] = {}

    @property
    def inactive(self) -> str | None:
        """Why discovery does not run though it may be enabled, None where it can."""
        return inactive_discovery(self.loaded.config, self._extras)

    def begin_owning(self) -> None:
        """The process has become owner: its file's settings shall be in force, unless it took over.

        Who takes over goes on with the settings that it followed.
        """
        if not self.version:
            self._adopt("start", self._adoptable(self.loaded.config), self.loaded.config)

    async def watch(self) -> None:
        """Follow the configuration files until cancelled; without any there is nothing to follow."""
        path = self.loaded.path

        def load() -> LoadedConfig:
            return load_config(path)

        async def changed(fresh: LoadedConfig) -> None:
            say_findings(fresh)
            self._put_forward(fresh.config)

        def refused(problem: ConfigError) -> None:
            say_refused(problem)
            self._process.observer.config_read(ReloadResult.REFUSED)

        if path is not None:
            await watch_config_files(self.loaded, load, changed, refused)
        await asyncio.Event().wait()

    async def propose(self, adoptable: AdoptableSettings, config: Config) -> int:
        """Put a checked configuration before the owner; the version once it is in force.

        Raises NotAdopted.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._adopted.setdefault(adoptable.digest, []).append(future)
        self._propose(adoptable, config)
        try:
            async with asyncio.timeout(ADOPT_S_MAX):
                return await future
        except TimeoutError:
            waiting = self._adopted.get(adoptable.digest, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._adopted.pop(adoptable.digest, None)
            owning = self._process.owning
            held_back = ", ".join(owning.owner.held_back_by()) if owning is not None else ""
            if held_back:
                raise NotAdopted(
                    f"it waits for {held_back}, of a release that cannot fold it: update them, or end them"
                ) from None
            raise NotAdopted("the log's owner did not adopt it within 10 s: see /ready") from None

    def propose_file(self) -> None:
        """A standby has caught up: what its file said at its start is put before the owner, once.

        Else a changed file would be lost where two ingest processes are restarted one after the other.
        """
        config, self._at_start = self._at_start, None
        if config is not None:
            self._put_forward(config)

    def on_proposed(self, fact: ConfigProposed) -> None:
        """A proposal was folded; the owner decides."""
        config = self._config_of(fact.digest, fact.settings)
        if config is None:
            log.error("a proposal of another process cannot be adopted here", replica=fact.replica.hex())
            return
        adoptable = AdoptableSettings(fact.digest, fact.settings, fact.pick, config.dynamo.enabled)
        self._adopt(fact.replica.hex(), adoptable, config)

    def on_adopted(self, fact: ConfigAdopted) -> None:
        """Settings are in force from here on, adopted by this process or the owner before it."""
        config = self._adopting.pop(fact.version, None)
        self._hold_in_force(fact.version, fact.digest, fact.settings, config)

    def follow(self, held: SettingsHeld | None) -> None:
        """What the fold holds to be in force, in a process that does not own the log."""
        if held is not None and held.version != self.version:
            self._hold_in_force(held.version, held.digest, held.settings, None)

    def _hold_in_force(self, version: int, digest: bytes, settings: str, config: Config | None) -> None:
        self.version = version
        config = config or self._config_of(digest, settings)
        if config is not None:
            self._apply(config, version, ReloadResult.ADOPTED)
        else:
            self._process.observer.config_read(ReloadResult.REFUSED)
        self._tell(digest, version)

    def _config_of(self, digest: bytes, settings: str) -> Config | None:
        """Settings of the log as this process runs them; None where it cannot."""
        if digest in self._proposed:
            return self._proposed[digest]
        live = self.loaded.config
        if bytes.fromhex(settings_digest(live)) == digest:
            return live
        try:
            return adopted_config(settings, live, self._extras)
        except ConfigError as problem:
            say_refused(problem)
            return None

    def _adoptable(self, config: Config) -> AdoptableSettings:
        return adoptable_settings(config, self._extras)

    def _put_forward(self, config: Config) -> None:
        """Adopt what a file says, or propose it to whoever may."""
        adoptable = self._adoptable(config)
        if self._process.is_owner:
            self._adopt("file", adoptable, config)
        elif not self._is_in_force(config):
            self._propose(adoptable, config)
        else:  # nothing that the log tells has changed; a secret may have
            self._apply(config, self.version, ReloadResult.UNCHANGED)

    def _is_in_force(self, config: Config) -> bool:
        """Whether what the log says is this, but for secrets and what is this process's own."""
        held = self._process.pick_log.settings()
        known = self._config_of(held.digest, held.settings)
        return known is not None and settings_digest(known) == settings_digest(config)

    def _propose(self, adoptable: AdoptableSettings, config: Config) -> None:
        _hold(self._proposed, adoptable.digest, config)
        self._process.append_proposal(
            ConfigProposed(self._process.replica, adoptable.digest, adoptable.settings, adoptable.pick)
        )

    def _adopt(self, proposed_by: str, adoptable: AdoptableSettings, config: Config) -> None:
        owning = self._process.owning
        assert owning is not None
        version = owning.owner.adopt(
            proposed_by, adoptable.digest, adoptable.settings, adoptable.pick, adoptable.enabled
        )
        if version != self._process.pick_log.settings().version:
            _hold(self._adopting, version, config)
            return
        # nothing that the log tells has changed; a secret may have
        self.version = version
        self._apply(config, version, ReloadResult.UNCHANGED)
        self._tell(adoptable.digest, version)

    def _tell(self, digest: bytes, version: int) -> None:
        for future in self._adopted.pop(digest, []):
            if not future.done():
                future.set_result(version)

    def _apply(self, config: Config, version: int, result: ReloadResult) -> None:
        plan = plan_reload(self.loaded.config, config)
        for key in plan.needs_process_restart:
            log.warning("a changed setting takes effect at the next start", key=key)
        if config.logging != self.loaded.config.logging:
            set_up_process_log(config.logging)
        self.loaded = replace(self.loaded, config=config)
        process = self._process
        process.observer.config_read(result)
        if process.service is not None:
            process.service.reconfigure(
                router_settings(config, prompt_settings(config, process.data, self._extras))
            )
        if process.owning is not None and process.owning.ingest is not None:
            process.owning.ingest.reconfigure(
                discovery_settings(config, self.inactive), subscription_settings(config)
            )
        log.info("settings are in force", version=version, changed=list(plan.changed)[:32])


def _hold(held: OrderedDict[Key, Config], key: Key, config: Config) -> None:
    held[key] = config
    held.move_to_end(key)
    while len(held) > WAITING_MAX:
        held.popitem(last=False)

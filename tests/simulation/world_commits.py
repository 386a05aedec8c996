"""What becomes of a batch: committed late or twice, refused, answered unclearly, torn by a crash.

And when other processes see it: after a while, in order, not while they are cut off.
"""

from __future__ import annotations

from typing import Any

from ingest.log.appends import Send
from projections.events.ports import LogFailed
from tests.simulation.world import World
from tests.simulation.world_owner import OwnerProcess
from tests.simulation.world_process import Writer


class Commits(World):
    """The disk and the network before the log. script: what the next commits of a process meet."""

    def commit(self, writer: Writer, send: Send) -> None:
        """A process commits a batch: some of what can happen happens."""
        if self.script.get(writer.process.name):
            self.script[writer.process.name].pop(0)(writer, send)
            return
        rng, chances, process = self.rng, self.chances, writer.process
        latency = rng.choice((300, 2_000, 8_000))
        if rng.random() < chances.slow:
            latency = rng.choice((50_000, 400_000, 1_500_000))
        wait = process.cut_until - self.now
        if wait > 0 and rng.random() < 0.5:
            process.later(latency, lambda: writer.failed(send.number, False))
            return
        if wait > 0:  # sent, and no answer before the cut ends
            process.when_reached(lambda: self.unclear(writer, send, latency))
            return
        if self.log.is_full and not send.critical:
            process.later(latency, lambda: writer.failed(send.number, True))
            return
        draw = rng.random()
        if draw < chances.unclear:
            self.unclear(writer, send, latency)
        elif draw < chances.unclear + chances.refused:
            process.later(latency, lambda: writer.failed(send.number, False))
        elif draw < chances.unclear + chances.refused + chances.broken and isinstance(process, OwnerProcess):
            self.count("sync failed")
            self.torn(send)
            process.later(latency, writer.broken)
        else:
            self.later(latency, lambda: self.land(writer, send, rng.choice((0, 200, 5_000))))

    def land(self, writer: Writer, send: Send, answer_us: int) -> None:
        """The batch reaches the log, if its process lives; what a dying process left is torn."""
        process = writer.process
        if not process.is_alive:
            self.torn(send)
            return
        try:
            first = self._append(send.records)
        except LogFailed:
            process.later(answer_us, writer.broken)
            return
        if self.rng.random() < self.chances.twice:  # a retry below us that arrived as well
            self.count("landed twice")
            self.later(self.rng.choice((0, 3_000, 900_000)), lambda: self._append_again(send))
        process.later(answer_us, lambda: writer.committed(send.number, first, len(send.records)))

    def unclear(self, writer: Writer, send: Send, answer_us: int, lands: str = "") -> None:
        """No clear answer. lands: never, before or after the writer looks, or in part."""
        self.count("unclear")
        lands = lands or self.rng.choice(("never", "before", "after", "part"))
        if lands == "before":
            self.later(self.rng.randint(0, answer_us), lambda: self._append_again(send))
        elif lands == "after":
            self.later(answer_us + self.rng.choice((100, 5_000, 2_000_000)), lambda: self._append_again(send))
        elif lands == "part":
            part = send.records[: self.rng.randint(0, len(send.records))]
            self.later(
                self.rng.randint(0, answer_us), lambda: self._append_again(send._replace(records=part))
            )
        writer.process.later(answer_us, lambda: writer.unclear(send.number))

    def _append_again(self, send: Send) -> None:
        if send.records and not self.log.is_replaced:
            self._append(send.records)

    def torn(self, send: Send, kind: str = "") -> None:
        """A crash in the middle of a write: a prefix survives, or it is cut with an offset jump."""
        if self.log.is_replaced:
            return
        survives = self.rng.randint(0, len(send.records))
        kind = kind or self.rng.choice(("clean", "prefix", "cut", "whole"))
        self.count(f"crash {kind}")
        if kind == "prefix" and survives:
            self._append(send.records[:survives])
        elif kind == "whole":
            self._append(send.records)
        elif kind == "cut":
            self.log.cut()

    def _append(self, records: list[bytes]) -> int:
        first = self.log.commit(records)
        for process in self.processes:
            if process.is_alive and hasattr(process, "eye"):
                self._show(process, self.log.end)
        return first

    def _show(self, process: Any, end: int) -> None:
        delay = self.rng.choice((0, 500, 3_000))
        if self.rng.random() < self.chances.slow:
            delay = self.rng.choice((80_000, 1_200_000))
        at = max(self.now + delay, process.cut_until)

        def seen() -> None:
            if self.now < process.cut_until:
                self.later(process.cut_until - self.now, seen)
            elif process.eye.see(end) and process.is_alive:
                process.later(0, process.reading.plan)

        self.later(at - self.now, seen)

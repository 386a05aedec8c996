"""Roll-ups of a follower that writes SQL by itself, told in the compacted topic `picklog.rollups` too.

The same rows, keys and values that stream workers send (`app.rollup_messages`), from the same table: a window
stays marked in the database until its row was acknowledged by all replicas in sync, so brokers that are away,
or a process that is killed, delay it and lose nothing. Twice does no harm: the newest of a key holds. Rows
of the audit are written meanwhile and wait for nothing (`app.sql_rows`).

Source: decision 48.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.audit_producer import PATIENCE_S, ROLLUPS_TOPIC, kafka_told
from app.rollup_messages import rollup_message
from ingest.log.kafka_keyed import Keyed, KeyedSend, prepare_keyed
from ingest.log.kafka_settings import KafkaPlace
from projections.audit.rollups import RollupRow


class RollupTopic:
    """Sends rows to one topic, which is made and checked before the first of them."""

    def __init__(self, place: KafkaPlace) -> None:
        self._place = place
        self._send: KeyedSend | None = None

    async def publish(self, rows: Sequence[RollupRow]) -> None:
        """Send rows until each is acknowledged. Raises AuditAway: some may arrive; AuditRefused."""
        messages = [Keyed(*rollup_message(row)) for row in rows]
        with kafka_told():
            if self._send is None:
                await prepare_keyed(self._place, ROLLUPS_TOPIC)
                self._send = await KeyedSend.open(self._place, PATIENCE_S)
            try:
                await self._send.messages(messages)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Leave the cluster."""
        send, self._send = self._send, None
        if send is not None:
            await send.close()

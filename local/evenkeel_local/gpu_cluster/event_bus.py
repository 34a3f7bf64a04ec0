"""Send events to EventBridge as AWS does: late, and, if configured, more than once and out of order."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import deque

from evenkeel_local.gpu_cluster.aws_model import Json
from evenkeel_local.gpu_cluster.config import ClusterConfig
from evenkeel_local.gpu_cluster.engine import EngineClient, EngineClientError

KEPT = 2000
TRIES = 5
RETRY_SECONDS = 0.3
SPREAD_SECONDS = 0.3


def source_of(detail_type: str) -> str:
    """Return the AWS service that sends events of this type."""
    if detail_type.startswith("SageMaker "):
        return "aws.sagemaker"
    return "aws.health" if detail_type == "AWS Health Event" else "aws.ec2"


class EngineEventBus:
    """Puts events on the engine's default bus; without an engine it only records them."""

    def __init__(self, config: ClusterConfig, engine: EngineClient | None) -> None:
        self._config = config
        self._engine = engine
        self._random = random.Random()
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent: deque[Json] = deque(maxlen=KEPT)

    def send(self, detail_type: str, detail: Json, resources: list[str], copies: int | None = None) -> None:
        """Send an event soon; two or three copies if the configuration asks for duplicates."""
        if copies is None:
            copies = self._random.choice((2, 3)) if self._config.duplicate_events else 1
        entry = {
            "Source": source_of(detail_type),
            "DetailType": detail_type,
            "Detail": json.dumps(detail),
            "Resources": resources,
        }
        for copy in range(copies):
            delay = self._config.delays.event_delay
            if copy or self._config.reorder_events:
                delay += self._random.uniform(0, SPREAD_SECONDS)
            event_record: Json = {
                "detailType": detail_type,
                "detail": detail,
                "copy": copy,
                "at": None,
                "delivered": False,
            }
            self.sent.append(event_record)
            task = asyncio.create_task(self._deliver(entry, event_record, delay))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, entry: Json, event_record: Json, delay: float) -> None:
        await asyncio.sleep(delay)
        event_record["at"] = time.time()
        if self._engine is None:
            return
        for attempt in range(TRIES):
            try:
                answer = await self._engine.json("events", "AWSEvents.PutEvents", {"Entries": [entry]})
            except EngineClientError as failure:
                event_record["error"] = str(failure)
            else:
                if answer.status == 200 and not answer.json().get("FailedEntryCount"):
                    event_record["delivered"] = True
                    event_record.pop("error", None)
                    return
                event_record["error"] = answer.body[:500].decode("utf-8", "replace")
            await asyncio.sleep(RETRY_SECONDS * 2**attempt)

    def stop(self) -> None:
        """Drop unsent events."""
        for task in list(self._tasks):
            task.cancel()

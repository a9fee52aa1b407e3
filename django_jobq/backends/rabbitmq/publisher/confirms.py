"""What was written on one channel and is not confirmed yet, by its delivery tag.

A return names the message by its message id, which is unique per publish. The confirm that follows
it then fails this message and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika

from django_jobq.backends.rabbitmq.publisher.items import Publish
from django_jobq.exceptions import PublishFailed


class Confirms:
    """Follow the publishes of one channel after the other; tags begin anew with each."""

    def __init__(self) -> None:
        self._items: dict[int, Publish] = {}
        self._by_id: dict[str, Publish] = {}
        self._last_tag = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Publish]:
        return iter(self._items.values())

    def add(self, item: Publish) -> None:
        """Note a message that is being written."""
        self._last_tag += 1
        self._items[self._last_tag] = self._by_id[item.message.message_id] = item
        item.is_sent = True

    def on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        """Note that a message found no queue; its confirm is still to come."""
        item = self._by_id.get(properties.message_id)
        if item is not None:
            item.returned = f"{method.reply_code} {method.reply_text}"

    def on_confirm(self, frame: Any) -> None:
        """Settle what a confirm tells of."""
        method = frame.method
        is_ack = isinstance(method, pika.spec.Basic.Ack)
        for tag in self._tags_of(method):
            item = self._items.pop(tag)
            self._by_id.pop(item.message.message_id, None)
            _settle(item, is_ack=is_ack)

    def take(self, is_wanted: Callable[[Publish], bool]) -> list[Publish]:
        """Remove and return some messages."""
        found = {tag: item for tag, item in self._items.items() if is_wanted(item)}
        for tag, item in found.items():
            del self._items[tag]
            self._by_id.pop(item.message.message_id, None)
        return list(found.values())

    def take_all(self) -> list[Publish]:
        """Remove and return everything in its order; the next tag is the first of a channel."""
        items = list(self)
        self._items.clear()
        self._by_id.clear()
        self._last_tag = 0
        return items

    def _tags_of(self, method: Any) -> list[int]:
        if not method.multiple:
            return [method.delivery_tag] if method.delivery_tag in self._items else []
        tags = []
        for tag in self._items:  # in ascending order
            if tag > method.delivery_tag:
                break
            tags.append(tag)
        return tags


def _settle(item: Publish, *, is_ack: bool) -> None:
    where = f"{item.key!r} through exchange {item.exchange!r}"
    if item.returned is not None:
        item.fail(PublishFailed(f"the broker returned a publish to {where}: {item.returned}"))
    elif not is_ack:
        item.fail(PublishFailed(f"the broker refused (nack) a publish to {where}"))
    else:
        item.succeed()

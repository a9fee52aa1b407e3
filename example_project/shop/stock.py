"""Ask the supplier over HTTP how much there is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from email.message import Message
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from django.conf import settings

TIMEOUT = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the supplier answered."""

    status: int
    headers: Message
    levels: dict[str, int]


def ask_supplier(skus: Iterable[str]) -> Reply:
    """Return how many of each article there are, or with which status the supplier refused."""
    query = urlencode([("sku", sku) for sku in skus])
    try:
        with urlopen(f"{settings.SUPPLIER_URL}/stock?{query}", timeout=TIMEOUT) as response:
            return Reply(status=200, headers=response.headers, levels=json.load(response))
    except HTTPError as error:
        with error:
            return Reply(status=error.code, headers=error.headers, levels={})

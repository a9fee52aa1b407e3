"""Trials of job arguments: what goes in comes out, or is refused at the enqueue call."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import translation
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy, ngettext_lazy

from django_jobq import Job, RetryPolicy, job
from django_jobq.backends.base import Counts
from django_jobq.backends.memory import MemoryBackend
from django_jobq.exceptions import InvalidArguments
from tests.app.models import Row

NOTHING = Counts(ready=0, held=0, reserved=0, dead=0)
OFFSET = dt.timezone(dt.timedelta(hours=5, minutes=45))

TYPED = [
    uuid.UUID("12345678-1234-5678-1234-567812345678"),
    dt.datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=OFFSET),
    dt.datetime(2026, 2, 28, 23, 59, 59, 1, tzinfo=dt.UTC),
    dt.datetime(1890, 1, 1, tzinfo=dt.timezone(dt.timedelta(minutes=53, seconds=28))),
    dt.datetime(1, 1, 1),
    dt.datetime.max,
    dt.date(2026, 2, 28),
    dt.time(23, 59, 59, 999_999),
    dt.time(1, 2, tzinfo=dt.timezone(-dt.timedelta(minutes=30))),
    dt.timedelta(days=-1, seconds=3, microseconds=7),
    dt.timedelta.max,
    Decimal("1.10"),
    Decimal("-0"),
    Decimal("1E+30"),
    Decimal("123456789012345678901234567890.123456789"),
]


@pytest.fixture
def record() -> tuple[Job[..., Any], list[Any]]:
    seen: list[Any] = []

    @job(name="trial.record")
    def record(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    return record, seen


def refused(name: str, *values: Any) -> str:
    """Return the text of the refusal of each value, which all name the argument."""

    @job(name="trial.refused")
    def takes(payload: Any) -> None: ...

    texts = []
    for value in values:
        with pytest.raises(InvalidArguments) as caught:
            takes.enqueue(value)
        assert isinstance(caught.value, TypeError)
        assert f"argument payload{name}" in str(caught.value)
        texts.append(str(caught.value))
    return "\n".join(texts)


@pytest.mark.parametrize("value", TYPED, ids=repr)
def test_b01_tagged_types_keep_type_and_value(value: Any, work: Callable[..., Any]) -> None:
    """A value arrives with its type, offset and trailing zeros, on the first attempt and later."""
    seen = []

    @job(name="trial.typed", retry=RetryPolicy.none(2))
    def typed(plain: Any, nested: Any, *, named: Any) -> None:
        seen.append((plain, nested["in"][0], named))
        raise ValueError

    typed.enqueue(value, {"in": (value,)}, named=value)
    work()

    assert len(seen) == 2
    for arrived in seen:
        for item in arrived:
            assert type(item) is type(value)
            assert item == value
            assert str(item) == str(value)
            if isinstance(value, dt.datetime):
                assert item.utcoffset() == value.utcoffset()


def test_b01_a_zone_is_reduced_to_its_offset(
    record: tuple[Job[..., Any], list[Any]], work: Callable[..., Any]
) -> None:
    """A datetime in a named zone denotes the same moment, on both sides of a clock change."""
    recorder, seen = record
    berlin = ZoneInfo("Europe/Berlin")
    moments = [dt.datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1)]

    recorder.enqueue(*moments)
    work()

    assert [m.utcoffset() for m in seen[0][0]] == [dt.timedelta(hours=2), dt.timedelta(hours=1)]
    assert [m.timestamp() for m in seen[0][0]] == [m.timestamp() for m in moments]


@pytest.mark.parametrize(
    "value",
    [
        {"$t": "uuid", "v": "no uuid"},
        {"$t": "dict", "v": {"$t": "dict"}},
        {"$t": None},
        {"a": [{"$t": [], "v": 1, "x": 2}]},
        {"__type__": "datetime", "isoformat": "x"},
    ],
    ids=repr,
)
def test_b01_a_dict_that_looks_like_a_marker_is_data(
    value: Any, record: tuple[Job[..., Any], list[Any]], work: Callable[..., Any]
) -> None:
    """A dict of the caller is never taken for the mark of a type, whatever its keys are."""
    recorder, seen = record

    recorder.enqueue(value, **{"$t": value})
    stats = work()

    assert stats.succeeded == 1
    assert seen == [((value,), {"$t": value})]


def test_b01_subclasses_of_plain_types_arrive_plain(
    record: tuple[Job[..., Any], list[Any]], work: Callable[..., Any]
) -> None:
    """A subclass of text, a number or a container arrives as the plain type, equal in value."""
    recorder, seen = record
    given = [
        mark_safe("<b>"),
        OrderedDict(a=1),
        defaultdict(int, b=2),
        Counter("aa"),
        type("Cents", (int,), {})(5),
        type("Ratio", (float,), {})(0.5),
        True,
    ]

    recorder.enqueue(*given)
    work()

    arrived = seen[0][0]
    assert list(arrived) == given
    assert [type(item) for item in arrived] == [str, dict, dict, dict, int, float, bool]


def test_b01_a_job_cannot_change_the_arguments_of_its_next_attempt(
    work: Callable[..., Any],
) -> None:
    """Neither the caller nor an earlier attempt changes what an attempt receives."""
    seen = []

    @job(name="trial.mutate", retry=RetryPolicy.none(2))
    def mutate(items: list[int], options: dict[str, int]) -> None:
        seen.append((list(items), dict(options)))
        items.append(99)
        options.clear()
        raise ValueError

    items, options = [1], {"a": 1}
    mutate.enqueue(items, options)
    items.append(2)
    options["b"] = 2
    work()

    assert seen == [([1], {"a": 1})] * 2


@pytest.mark.contract(48)
def test_b03_keys_that_are_not_text_are_refused(memory: MemoryBackend) -> None:
    """A dict with a key that is not text is refused at the call, so that no key changes type."""
    text = refused("", {1: "a", 2: "b"}, {None: 1}, {True: 1, "true": 2}, {(1, 2): 1}, {1.5: 1})

    assert "key 1," in text
    assert "pass str(key) or a list of pairs" in text
    assert "argument payload['a'][1] has the key 7" in refused("['a'][1]", {"a": [0, {7: 0}]})
    assert memory.counts("default") == NOTHING


def test_b03_two_keys_that_become_one_are_refused() -> None:
    """Keys that would fall together on the wire are refused instead of losing one of them."""
    identity = {"__eq__": object.__eq__, "__hash__": object.__hash__}
    text = refused("", {type("Key", (str,), identity)("same"): 1, "same": 2})

    assert "two keys that are the text 'same'" in text


def test_b03_a_tuple_becomes_a_list_and_order_stays(
    record: tuple[Job[..., Any], list[Any]], work: Callable[..., Any]
) -> None:
    """A tuple arrives as a list, at every depth; a dict keeps the order of its keys."""
    recorder, seen = record

    recorder.enqueue((1, (2, ())), {"z": (3,), "a": None})
    work()

    args = seen[0][0]
    assert args == ([1, [2, []]], {"z": [3], "a": None})
    assert list(args[1]) == ["z", "a"]


@pytest.mark.contract(48)
def test_b05_numbers_that_json_lacks_are_refused(memory: MemoryBackend) -> None:
    """A number that JSON cannot hold is refused at the call, with its place named."""
    text = refused("", math.nan, math.inf, Decimal("NaN"), Decimal("sNaN"), -Decimal("Infinity"))

    assert "is nan, which JSON cannot hold" in text
    assert refused("['m'][1]", {"m": [1, -math.inf]})
    assert refused("", type("Ratio", (float,), {})("nan"))
    assert refused("", 10**5000)
    assert memory.counts("default") == NOTHING


def test_b05_what_a_job_returns_never_decides_its_outcome(work: Callable[..., Any]) -> None:
    """A job that returns something no one can store has succeeded, once."""
    runs = []

    @job(name="trial.returns")
    def returns(kind: str) -> object:
        runs.append(kind)
        return {"nan": math.nan, "object": object(), "cycle": runs}[kind]

    for kind in ("nan", "object", "cycle"):
        returns.enqueue(kind)
    stats = work(concurrency=1)

    assert runs == ["nan", "object", "cycle"]
    assert (stats.succeeded, stats.retried, stats.dead_lettered) == (3, 0, 0)


@pytest.mark.contract(48)
@pytest.mark.django_db
def test_b09_model_instances_and_querysets_are_refused(memory: MemoryBackend) -> None:
    """A model instance, saved or not or lazy, is refused with the advice to pass its key."""
    saved = Row.objects.create(name="saved")
    user = SimpleLazyObject(lambda: User(username="someone"))

    for text in (refused("", saved), refused("", Row()), refused("", user)):
        assert "a model instance" in text
        assert "pass its pk" in text
    assert "pass its pk" in refused("['rows'][0]", {"rows": [saved]})
    assert "a queryset" in refused("", Row.objects.all(), Row.objects.none())
    assert "primary keys" in refused("", Row.objects.filter(pk=1).values("pk"))
    assert "a function or class" in refused("", Row)
    assert refused("", Row.objects)
    assert memory.counts("default") == NOTHING


@pytest.mark.django_db
def test_b09_a_row_that_is_gone_ends_the_job(
    memory: MemoryBackend, drain: Callable[..., None]
) -> None:
    """A job whose row was deleted meanwhile fails by its policy, in a bounded number of runs."""
    runs = []

    @job(name="trial.gone", retry=RetryPolicy.none(2))
    def gone(pk: int) -> None:
        runs.append(pk)
        Row.objects.get(pk=pk)

    row = Row.objects.create(name="short-lived")
    gone.using(on_commit=False).enqueue(row.pk)
    pk = row.pk
    row.delete()
    drain()

    assert runs == [pk, pk]
    [letter] = memory.dead_letters("default")
    assert letter.cause == "exhausted"
    assert "DoesNotExist" in letter.reason


@pytest.mark.parametrize("value", ["text", [1], {"a": 1}, 7, True, 1.5, uuid.UUID(int=1)], ids=repr)
def test_b09_a_lazy_object_stands_for_its_value(
    value: Any, record: tuple[Job[..., Any], list[Any]], work: Callable[..., Any]
) -> None:
    """A lazy object around a plain value arrives as that value, or is refused by name."""
    recorder, seen = record

    try:
        recorder.enqueue(SimpleLazyObject(lambda: value))
    except InvalidArguments as refusal:
        assert "argument" in str(refusal)  # noqa: PT017 - refusing is one of two right answers
        return
    work()

    assert seen == [((value,), {})]


@pytest.mark.django_db(transaction=True)
def test_b11_lazy_text_is_translated_at_the_enqueue_call(
    record: tuple[Job[..., Any], list[Any]], work: Callable[..., Any]
) -> None:
    """Lazy text becomes plain text in the language of the enqueue call, not of commit or worker."""
    recorder, seen = record
    yes = gettext_lazy("Yes")
    days = ngettext_lazy("%(n)d day", "%(n)d days", "n")

    with transaction.atomic():
        with translation.override("de"):
            recorder.enqueue(yes, {yes: [yes]}, format_lazy("{}!", yes), named=yes)
            recorder.enqueue(days % {"n": 2})
        assert str(yes) == "Yes"
    work(concurrency=1)

    args, kwargs = seen[0]
    assert args == ("Ja", {"Ja": ["Ja"]}, "Ja!")
    assert kwargs == {"named": "Ja"}
    assert type(args[0]) is str
    assert [type(key) for key in args[1]] == [str]
    assert type(seen[1][0][0]) is str

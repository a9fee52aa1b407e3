"""Job arguments as JSON and back: what travels, what is refused, and with which advice."""

import array
import collections
import dataclasses
import datetime as dt
import enum
import json
import uuid
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from django.db import models
from django.http import QueryDict
from django.utils import translation
from django.utils.functional import SimpleLazyObject, lazystr
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from django_jobq.exceptions import EnvelopeError, InvalidArguments
from django_jobq.serialization import MAX_DEPTH, dump, load
from tests.app.models import Row


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 1


class Size(models.TextChoices):
    SMALL = "s"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Order:
    pk: int


class Text(str):
    __slots__ = ()


class Lookalike(str):
    """Be text that is a dict key of its own."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Whole(int):
    pass


class Real(float):
    pass


class Moment(dt.datetime):
    pass


def nested(depth: int) -> list[Any]:
    """Return a list of as many levels."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.contract(34)
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        pytest.param(10**4000, id="long"),
        0.1,
        -0.0,
        1e300,
        "",
        "Grüße, 世界 🎉",
        "\x00\ud800",
        [],
        {},
        [1, [2, [3, {}]]],
        {"a": {"b": [None]}, "": 1},
        {"v": 1, "t": 2},
    ],
)
def test_plain_json_is_itself(value: object) -> None:
    assert dump(value, "a") == value
    assert load(json.loads(json.dumps(dump(value, "a")))) == value


@pytest.mark.contract(34)
@pytest.mark.parametrize(
    ("value", "tree"),
    [
        (
            dt.datetime(2026, 1, 31, 23, 59, 59, 999999),
            {"$t": "datetime", "v": "2026-01-31T23:59:59.999999"},
        ),
        (
            dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC),
            {"$t": "datetime", "v": "2026-07-01T12:00:00+00:00"},
        ),
        (
            dt.datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Vienna")),
            {"$t": "datetime", "v": "2026-07-01T12:00:00+02:00"},
        ),
        (dt.date(2026, 1, 31), {"$t": "date", "v": "2026-01-31"}),
        (dt.time(1, 2, 3, 4), {"$t": "time", "v": "01:02:03.000004"}),
        (
            dt.time(1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            {"$t": "time", "v": "01:02:00+02:00"},
        ),
        (dt.timedelta(days=-1, microseconds=1), {"$t": "timedelta", "v": [-1, 0, 1]}),
        (dt.timedelta.max, {"$t": "timedelta", "v": [999999999, 86399, 999999]}),
        (Decimal("1.10"), {"$t": "decimal", "v": "1.10"}),
        (Decimal("-1E+30"), {"$t": "decimal", "v": "-1E+30"}),
        (
            uuid.UUID("9a3b2c1d-0000-4000-8000-00000000cafe"),
            {"$t": "uuid", "v": "9a3b2c1d-0000-4000-8000-00000000cafe"},
        ),
        ({"$t": "decimal", "v": "5"}, {"$t": "dict", "v": {"$t": "decimal", "v": "5"}}),
        (
            {"$t": {"$t": 1}},
            {"$t": "dict", "v": {"$t": {"$t": "dict", "v": {"$t": 1}}}},
        ),
        (
            {"due": [dt.date(2026, 1, 1)]},
            {"due": [{"$t": "date", "v": "2026-01-01"}]},
        ),
    ],
)
def test_tagged_values_come_back_equal(value: object, tree: object) -> None:
    assert dump(value, "a") == tree
    loaded = load(json.loads(json.dumps(tree)))
    assert loaded == value
    assert type(loaded) is type(value)


def test_an_aware_datetime_keeps_its_offset_and_a_decimal_its_places() -> None:
    moment = dt.datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Vienna"))
    assert load(dump(moment, "a")).utcoffset() == dt.timedelta(hours=2)
    assert str(load(dump(Decimal("1.10"), "a"))) == "1.10"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Text("a"), "a"),
        (mark_safe("<b>"), "<b>"),
        (Whole(5), 5),
        (Real(0.5), 0.5),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.defaultdict(int, a=1), {"a": 1}),
        ({Text("a"): 1}, {"a": 1}),
        (lazystr("late"), "late"),
        ({lazystr("key"): 1}, {"key": 1}),
        (Moment(2026, 1, 1), dt.datetime(2026, 1, 1)),
        (SimpleLazyObject(lambda: "late"), "late"),
        (SimpleLazyObject(lambda: [1]), [1]),
    ],
)
def test_kin_of_plain_values_become_plain(value: object, plain: object) -> None:
    loaded = load(json.loads(json.dumps(dump(value, "a"))))
    assert loaded == plain
    assert type(loaded) is type(plain)


def test_a_lazy_string_is_text_in_the_language_of_the_call() -> None:
    label = gettext_lazy("Yes")
    with translation.override("de"):
        tree = dump(label, "a")
    with translation.override("en"):
        assert load(tree) == "Ja"


@pytest.mark.contract(48)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            Row(pk=1),
            "argument a is a model instance (tests.app.models.Row): pass its pk and load it in the"
            " job",
        ),
        (
            Row.objects.none(),
            "argument a is a queryset (django.db.models.query.QuerySet): pass a list of primary"
            " keys",
        ),
        (
            Colour.RED,
            f"argument a is an enum member ({__name__}.Colour): pass its .value",
        ),
        (Level.HIGH, f"argument a is an enum member ({__name__}.Level): pass its .value"),
        (Size.SMALL, f"argument a is an enum member ({__name__}.Size): pass its .value"),
        ({1}, "argument a is a set (builtins.set): pass a sorted list"),
        (frozenset(), "argument a is a set (builtins.frozenset): pass a sorted list"),
        (
            b"raw",
            "argument a is binary data (builtins.bytes): pass base64 text, or store it and pass its"
            " key",
        ),
        (
            bytearray(),
            "argument a is binary data (builtins.bytearray): pass base64 text, or store it and pass"
            " its key",
        ),
        (
            Point(1, 2),
            f"argument a is a named tuple ({__name__}.Point): pass ._asdict() or a plain tuple",
        ),
        (
            QueryDict("a=1&a=2"),
            "argument a is a dict of several values a key (django.http.request.QueryDict): pass"
            " .dict() or dict(value.lists())",
        ),
        (
            Order(1),
            f"argument a is a dataclass ({__name__}.Order): pass dataclasses.asdict(value)",
        ),
        (
            len,
            "argument a is a function or class (builtins.builtin_function_or_method): pass a name"
            " and look it up in the job",
        ),
        (
            range(3),
            "argument a is a builtins.range, which a job cannot carry: pass text, numbers, dates,"
            " lists or dicts",
        ),
        (
            1j,
            "argument a is a builtins.complex, which a job cannot carry: pass text, numbers, dates,"
            " lists or dicts",
        ),
        (
            array.array("i"),
            "argument a is a array.array, which a job cannot carry: pass text, numbers, dates,"
            " lists or dicts",
        ),
        (
            float("nan"),
            "argument a is nan, which JSON cannot hold; pass None or text",
        ),
        (
            Real("-inf"),
            "argument a is -inf, which JSON cannot hold; pass None or text",
        ),
        (
            Decimal("NaN"),
            "argument a is Decimal NaN, which is no number; pass None or text",
        ),
        (
            Decimal("Infinity"),
            "argument a is Decimal Infinity, which is no number; pass None or text",
        ),
        pytest.param(
            10**5000, "argument a is a number too long for JSON; pass it as text", id="long"
        ),
        pytest.param(
            Whole(10**5000), "argument a is a number too long for JSON; pass it as text", id="kin"
        ),
        (
            dt.time(1, 2, tzinfo=ZoneInfo("Europe/Vienna")),
            "argument a is a time in a named zone without a date: pass a datetime",
        ),
        (
            {1: "a"},
            "argument a has the key 1, but a dict in a job has text keys; pass str(key) or a list"
            " of pairs",
        ),
        (
            {None: "a"},
            "argument a has the key None, but a dict in a job has text keys; pass str(key) or a"
            " list of pairs",
        ),
        (
            {Lookalike("a"): 1, "a": 2},
            "argument a has two keys that are the text 'a'",
        ),
        (nested(MAX_DEPTH + 1), "argument a[0][0][0][0][0] is nested deeper than 100 levels"),
    ],
)
def test_what_cannot_travel_is_refused_with_what_to_pass_instead(
    value: object, message: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        dump(value, "argument a")
    assert str(caught.value) == message


@pytest.mark.parametrize("key", [Size.SMALL, Colour.RED])
def test_an_enum_member_is_no_key(key: object) -> None:
    with pytest.raises(InvalidArguments, match=r"has the key .*text keys; pass str\(key\)"):
        dump({key: 1}, "argument a")


@pytest.mark.contract(48)
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([1, {2}], "argument a[1]"),
        ((1, (2, {3})), "argument a[1][1]"),
        ({"order": {"lines": [0, {"row": Row(pk=1)}]}}, "argument a['order']['lines'][1]['row']"),
        ({"$t": {1}}, "argument a['$t']"),
        ({"a": {2: 3}}, "argument a['a']"),
    ],
)
def test_the_refusal_names_the_place_inside_the_argument(value: object, path: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        dump(value, "argument a")
    assert str(caught.value).startswith(f"{path} is ") or str(caught.value).startswith(
        f"{path} has "
    )


@pytest.mark.contract(48)
def test_a_list_inside_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidArguments, match="is nested deeper than 100 levels"):
        dump(endless, "argument a")


def test_the_deepest_nesting_that_is_allowed_travels() -> None:
    assert load(dump(nested(MAX_DEPTH), "a")) == nested(MAX_DEPTH)


def test_the_refusal_is_a_type_error() -> None:
    assert issubclass(InvalidArguments, TypeError)


def test_the_tree_does_not_share_what_the_caller_may_change() -> None:
    inner = [1]
    value = {"inner": inner}
    tree = dump(value, "a")
    inner.append(2)
    value["more"] = []
    assert tree == {"inner": [1]}


def test_what_a_job_changes_is_not_in_the_tree() -> None:
    tree = dump({"inner": [1]}, "a")
    load(tree)["inner"].append(2)
    assert load(tree) == {"inner": [1]}


@pytest.mark.contract(37)
@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"$t": "pickle", "v": "x"}, "an argument has the unknown tag 'pickle'"),
        ({"$t": "date"}, "an argument has the unknown tag 'date'"),
        ({"$t": ["date"], "v": "x"}, "an argument has the unknown tag ['date']"),
        ({"$t": None, "v": "x"}, "an argument has the unknown tag None"),
        ({"$t": "datetime", "v": "soon"}, "'soon' is no datetime"),
        ({"$t": "datetime", "v": 5}, "5 is no datetime"),
        ({"$t": "date", "v": "2026-02-30"}, "'2026-02-30' is no date"),
        ({"$t": "time", "v": "25:00"}, "'25:00' is no time"),
        ({"$t": "timedelta", "v": [1]}, "[1] is no timedelta"),
        ({"$t": "timedelta", "v": "abc"}, "'abc' is no timedelta"),
        ({"$t": "timedelta", "v": [10**12, 0, 0]}, "[1000000000000, 0, 0] is no timedelta"),
        ({"$t": "timedelta", "v": {}}, "{} is no timedelta"),
        ({"$t": "decimal", "v": "1,5"}, "'1,5' is no decimal"),
        ({"$t": "decimal", "v": None}, "None is no decimal"),
        ({"$t": "uuid", "v": "5"}, "'5' is no uuid"),
        ({"$t": "uuid", "v": 5}, "5 is no uuid"),
        ({"$t": "dict", "v": [1]}, "[1] is no dict"),
    ],
)
def test_a_tag_that_cannot_be_read_is_a_malformed_envelope(tree, message: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        load([{"deep": tree}])
    assert str(caught.value) == f"malformed envelope: {message}"


@pytest.mark.contract(37)
def test_a_foreign_tree_that_is_too_deep_is_a_malformed_envelope() -> None:
    with pytest.raises(EnvelopeError, match="malformed envelope"):
        load(nested(20_000))

"""Queue configurations: the QUEUES setting, names, levels and priorities."""

from datetime import timedelta

import pytest

from django_jobq.exceptions import InvalidJob
from django_jobq.queues import QueueConfig, check_queue_name, parse_queues, suggest
from django_jobq.retry import RetryPolicy


def test_the_defaults_of_a_queue() -> None:
    assert parse_queues(["email"], "QUEUES") == {
        "email": QueueConfig(
            name="email",
            prefetch=None,
            max_priority=10,
            retry=None,
            durable=True,
            message_ttl=None,
        )
    }


@pytest.mark.parametrize("value", [["b", "a"], ("b", "a"), {"b": {}, "a": {}}])
def test_queues_keep_the_order_of_the_setting(value: object) -> None:
    assert list(parse_queues(value, "QUEUES")) == ["b", "a"]


@pytest.mark.parametrize("value", [[], (), {}])
def test_no_queue_is_a_setting_too(value: object) -> None:
    assert parse_queues(value, "QUEUES") == {}


def test_a_name_given_twice_is_one_queue() -> None:
    assert list(parse_queues(["a", "b", "a"], "QUEUES")) == ["a", "b"]


@pytest.mark.contract(13)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prefetch": 10}, {"prefetch": 10}),
        ({"prefetch": 0}, {"prefetch": 0}),
        ({"prefetch": -1}, {"prefetch": 0}),
        ({"prefetch": None}, {"prefetch": None}),
        ({"max_priority": 0}, {"max_priority": 0}),
        ({"max_priority": None}, {"max_priority": 0}),
        ({"max_priority": 255}, {"max_priority": 255}),
        ({"durable": True}, {"durable": True}),
        ({"retry": None}, {"retry": None}),
        ({"retry": 5}, {"retry": RetryPolicy(max_attempts=5)}),
        ({"retry": {}}, {"retry": RetryPolicy(max_attempts=3)}),
        (
            {"retry": {"backoff": "fixed", "delay": 5}},
            {"retry": RetryPolicy(backoff="fixed", delay=5.0)},
        ),
        ({"message_ttl": 60}, {"message_ttl": 60.0}),
        ({"message_ttl": "1m"}, {"message_ttl": 60.0}),
        ({"message_ttl": timedelta(minutes=1)}, {"message_ttl": 60.0}),
        ({"message_ttl": None}, {"message_ttl": None}),
    ],
)
def test_options_of_a_queue(options, expected) -> None:
    assert parse_queues({"email": options}, "QUEUES")["email"] == QueueConfig(
        name="email", **expected
    )


@pytest.mark.contract(90, 95)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch": "10"}, "Q['email']['prefetch']: '10' is no whole number"),
        ({"prefetch": 1.0}, "Q['email']['prefetch']: 1.0 is no whole number"),
        ({"prefetch": True}, "Q['email']['prefetch']: True is no whole number"),
        ({"max_priority": -1}, "Q['email']['max_priority']: -1 is not within 0 and 255"),
        ({"max_priority": 256}, "Q['email']['max_priority']: 256 is not within 0 and 255"),
        ({"max_priority": "9"}, "Q['email']['max_priority']: '9' is no whole number"),
        ({"durable": 1}, "Q['email']['durable']: 1 is refused, since jobs must survive"),
        (
            {"durable": False},
            "Q['email']['durable']: False is refused, since jobs must survive a restart of their"
            " broker: leave 'durable' out; work that may be lost belongs to an alias with the"
            " memory backend",
        ),
        (
            {"retry": 0},
            "Q['email']['retry']: retry: max_attempts 0 is no whole number from 1",
        ),
        ({"message_ttl": 0}, "Q['email']['message_ttl']: 0 is zero; it must be longer"),
        (
            {"message_ttl": 1.5},
            "Q['email']['message_ttl']: 1.5 is no duration: write text with a unit such as '30s' or"
            " '5m', or a timedelta",
        ),
        ({"prefetsch": 5}, "Q['email']: unknown key 'prefetsch'; did you mean 'prefetch'?"),
        ({"name": "other"}, "Q['email']: unknown key 'name'"),
        (
            {"x": 1},
            "Q['email']: unknown key 'x'; known: durable, max_priority, message_ttl, prefetch,"
            " retry",
        ),
        (None, "Q['email']: None is no dict of queue options"),
        (5, "Q['email']: 5 is no dict of queue options"),
    ],
)
def test_a_wrong_option_is_refused_with_its_path(options, message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_queues({"email": options}, "Q")
    assert str(caught.value).startswith(message)


def test_a_queue_that_a_restart_takes_away_cannot_be_made() -> None:
    with pytest.raises(
        InvalidJob, match=r"^queue 'email': False is refused, .*leave 'durable' out"
    ):
        QueueConfig(name="email", durable=False)


@pytest.mark.parametrize("value", ["email", None, 5, {"email"}])
def test_what_is_neither_a_list_nor_a_dict_is_refused(value: object) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_queues(value, "Q")
    assert str(caught.value) == f"Q: {value!r} is neither a list of names nor a dict of options"


@pytest.mark.parametrize("name", ["default", "e-mail", "shop.orders", "größer", "a b", "x" * 255])
def test_queue_names(name: str) -> None:
    assert check_queue_name(name, "queue") == name


@pytest.mark.parametrize("name", ["", " ", "\t", None, 5, b"email", ["email"]])
def test_an_empty_queue_name_or_none_is_refused(name: object) -> None:
    with pytest.raises(InvalidJob, match=r"^queue: a queue name is text that is not empty$"):
        check_queue_name(name, "queue")


@pytest.mark.parametrize("name", ["*", "a.*", "a.#", "a\nb", "a\x00", "a\x7f", "a\u2028b"])
def test_a_queue_name_with_a_reserved_character_is_refused(name: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        check_queue_name(name, "queue")
    assert str(caught.value) == "queue: a queue name holds neither *, # nor control characters"


def test_a_wrong_name_in_the_setting_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidJob, match=r"^Q\['a\*'\]: a queue name holds neither"):
        parse_queues(["a*"], "Q")


@pytest.mark.parametrize(
    ("max_priority", "priority", "front", "level"),
    [
        (10, 0, False, 0),
        (10, 9, False, 9),
        (10, 10, False, 9),
        (10, 200, False, 9),
        (10, 0, True, 10),
        (10, 9, True, 10),
        (1, 0, False, 0),
        (1, 5, False, 0),
        (1, 0, True, 1),
        (0, 0, False, 0),
        (0, 9, False, 0),
        (0, 9, True, 0),
        (255, 254, False, 254),
        (255, 0, True, 255),
    ],
)
def test_the_top_level_is_kept_for_what_goes_in_front(
    max_priority: int, priority: int, front: bool, level: int
) -> None:
    config = QueueConfig(name="email", max_priority=max_priority)
    assert config.level(priority, front=front) == level


@pytest.mark.parametrize(
    ("max_priority", "priority"), [(10, 0), (10, 9), (1, 0), (0, 0), (0, 9), (255, 254)]
)
def test_a_priority_that_fits_passes(max_priority: int, priority: int) -> None:
    QueueConfig(name="email", max_priority=max_priority).check_priority(priority)


@pytest.mark.parametrize(
    ("max_priority", "priority", "last"), [(10, 10, 9), (10, 200, 9), (1, 1, 0), (10, -1, 9)]
)
def test_a_priority_without_a_level_is_refused(max_priority: int, priority: int, last: int) -> None:
    with pytest.raises(InvalidJob) as caught:
        QueueConfig(name="email", max_priority=max_priority).check_priority(priority)
    assert str(caught.value) == (
        f"priority {priority} does not fit queue 'email', whose priorities are 0 to {last}"
    )


@pytest.mark.parametrize(
    ("wrong", "known", "text"),
    [
        ("emial", ["default", "email"], "; did you mean 'email'?"),
        ("queues", ["OPTIONS", "QUEUES"], "; did you mean 'QUEUES'?"),
        ("PREFETSCH", ["prefetch"], "; did you mean 'prefetch'?"),
        ("zzz", ["email", "default"], "; known: default, email"),
        ("zzz", [], "; known: none"),
        (5, ["default"], "; known: default"),
    ],
)
def test_suggestions(wrong: object, known: list[str], text: str) -> None:
    assert suggest(wrong, known) == text


def test_a_queue_configuration_is_a_value() -> None:
    assert QueueConfig(name="a") == QueueConfig(name="a")
    with pytest.raises(AttributeError):
        QueueConfig(name="a").prefetch = 5  # type: ignore[misc]

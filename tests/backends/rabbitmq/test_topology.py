"""Names, arguments and routes on the broker, as tables."""

import dataclasses
import re

import pytest

from django_jobq.backends.rabbitmq import operations
from django_jobq.backends.rabbitmq.topology import (
    LEVELS,
    MAX_HOLD,
    Binding,
    Declaration,
    Exchange,
    Queue,
    QueueType,
    Topology,
    Unbinding,
)
from django_jobq.queues import QueueConfig
from django_jobq.retry import RetryPolicy

TYPES = ["classic", "quorum"]
LOSSLESS = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def named(items: list[Declaration], kind: type) -> dict[str, Declaration]:
    return {item.name: item for item in items if isinstance(item, kind)}


def shared(queue_type: QueueType = "classic", **fields: object) -> list[Declaration]:
    fields.setdefault("hold_type", queue_type)
    return list(Topology(queue_type=queue_type, **fields).shared())


class TestTopology:
    backend_name = "rabbitmq"

    # Work queues

    @pytest.mark.contract(134)
    @pytest.mark.parametrize("revision", [1, 7])
    def test_a_work_queue_is_bound_to_the_entrance_and_to_the_return(self, revision: int) -> None:
        config = QueueConfig(name="mail.out", revision=revision)
        queue, *bindings = Topology().work(config)
        name = f"jobq.q.mail.out.{revision}"
        assert queue.name == name
        assert [item for item in bindings if isinstance(item, Binding)] == [
            Binding(source="jobq", target=name, key="mail.out"),
            Binding(source="jobq.return", target=name, key="*.*.*.*.*.mail.out"),
        ]
        entrance = named(shared(), Exchange)["jobq"]
        assert entrance.kind == "direct"

    @pytest.mark.contract(134)
    def test_older_revisions_are_unbound_once_the_new_one_is_bound(self) -> None:
        items = list(Topology().work(QueueConfig(name="a", revision=3)))
        ways = [("jobq", "a"), ("jobq.return", "*.*.*.*.*.a")]
        assert items[3:] == [
            Unbinding(source=source, target=f"jobq.q.a.{older}", key=key)
            for older in (1, 2)
            for source, key in ways
        ]
        assert [item.method for item in operations.declare(items[3:])] == ["queue_unbind"] * 4
        far = Topology().older(QueueConfig(name="a", revision=20_260_101))
        assert far == [f"jobq.q.a.{revision}" for revision in range(20_260_096, 20_260_101)]

    @pytest.mark.contract(134)
    @pytest.mark.parametrize(
        ("config", "expected"),
        [
            ({}, {"x-max-priority": 10}),
            ({"max_priority": 3}, {"x-max-priority": 3}),
            ({"max_priority": 0}, {}),
            ({"max_priority": 0, "message_ttl": 1.5}, {"x-message-ttl": 1500}),
            ({"max_priority": 0, "message_ttl": 0.0001}, {"x-message-ttl": 1}),
        ],
    )
    def test_a_classic_work_queue_has_exactly_these_arguments(
        self, config: dict[str, object], expected: dict[str, object]
    ) -> None:
        queue, *_ = Topology().work(QueueConfig(name="a", **config))
        assert queue.arguments == {
            "x-queue-type": "classic",
            "x-dead-letter-exchange": "jobq.dlx",
            "x-dead-letter-routing-key": "a",
            **expected,
        }

    @pytest.mark.contract(134)
    @pytest.mark.parametrize(
        ("ttl", "expected"),
        [(None, {}), (60, {"x-message-ttl": 60_000}), (0.5, {"x-message-ttl": 500})],
    )
    def test_a_quorum_work_queue_loses_nothing_and_has_no_levels_of_ours(
        self, ttl: float | None, expected: dict[str, int]
    ) -> None:
        config = QueueConfig(name="a", message_ttl=ttl)
        queue, *_ = Topology(queue_type="quorum", hold_type="quorum").work(config)
        arguments = dict(queue.arguments)
        assert arguments.pop("x-delivery-limit") >= 1_000
        assert arguments == {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "jobq.dlx",
            "x-dead-letter-routing-key": "a",
            **expected,
            **LOSSLESS,
        }

    # Dead letters and the lost

    @pytest.mark.contract(135, 151)
    @pytest.mark.parametrize("queue_type", TYPES)
    def test_inboxes_limit_nothing(self, queue_type: QueueType) -> None:
        items = shared(queue_type)
        for name in ("jobq.dead", "jobq.lost"):
            arguments = dict(named(items, Queue)[name].arguments)
            limit = arguments.pop("x-delivery-limit", None)
            assert arguments == {"x-queue-type": queue_type}
            assert (limit is None) == (queue_type == "classic")
            assert limit is None or limit >= 1_000_000
        exchanges = named(items, Exchange)
        assert exchanges["jobq.dlx"].kind == exchanges["jobq.lost"].kind == "fanout"
        assert exchanges["jobq.return"].arguments == {"alternate-exchange": "jobq.lost"}
        bindings = {(item.source, item.target) for item in items if isinstance(item, Binding)}
        assert {("jobq.dlx", "jobq.dead"), ("jobq.lost", "jobq.lost")} <= bindings

    # The ladder

    @pytest.mark.contract(136, 138)
    @pytest.mark.parametrize("hold_type", TYPES)
    def test_the_ladder_is_75_queues_with_these_arguments(self, hold_type: QueueType) -> None:
        queues = named(shared(hold_type=hold_type), Queue)
        holds = {name: item for name, item in queues.items() if name.startswith("jobq.hold.")}
        assert set(holds) == {f"jobq.hold.{lv}.{d:x}" for lv in range(5) for d in range(1, 16)}
        for name, hold in holds.items():
            level, digit = name.removeprefix("jobq.hold.").split(".")
            arguments = dict(hold.arguments)
            limit = arguments.pop("x-delivery-limit", None)
            assert arguments == {
                "x-queue-type": hold_type,
                "x-message-ttl": int(digit, 16) * 16 ** int(level) * 1000,
                "x-dead-letter-exchange": (
                    f"jobq.hold.{int(level) - 1}" if level != "0" else "jobq.return"
                ),
                **(LOSSLESS if hold_type == "quorum" else {}),
            }
            assert (limit is None) == (hold_type == "classic")

    @pytest.mark.contract(136)
    def test_a_digit_leads_to_its_queue_and_a_zero_straight_on(self) -> None:
        bindings = {item.source: [] for item in shared() if isinstance(item, Binding)}
        for item in shared():
            if isinstance(item, Binding):
                bindings[item.source].append((item.key, item.target, item.to_exchange))
        exchanges = named(shared(), Exchange)
        assert exchanges["jobq.return"].kind == "topic"
        for level in range(5):
            source, stars = f"jobq.hold.{level}", "*." * (4 - level)
            assert exchanges[source] == Exchange(name=source, kind="topic")
            below = f"jobq.hold.{level - 1}" if level else "jobq.return"
            expected = [(f"{stars}{d:x}.#", f"{source}.{d:x}", False) for d in range(1, 16)]
            assert sorted(bindings[source]) == sorted([(f"{stars}0.#", below, True), *expected])

    @pytest.mark.contract(136, 139)
    @pytest.mark.parametrize(
        ("delay", "exchange", "key", "held"),
        [
            (0, "jobq", "a", 0),
            (-3, "jobq", "a", 0),
            (0.0004, "jobq.hold.0", "0.0.0.0.1.a", 1),
            (0.005, "jobq.hold.0", "0.0.0.0.1.a", 1),
            (1, "jobq.hold.0", "0.0.0.0.1.a", 1),
            (1.000001, "jobq.hold.0", "0.0.0.0.2.a", 2),
            (15, "jobq.hold.0", "0.0.0.0.f.a", 15),
            (16, "jobq.hold.1", "0.0.0.1.0.a", 16),
            (29.2, "jobq.hold.1", "0.0.0.1.e.a", 30),
            (30, "jobq.hold.1", "0.0.0.1.e.a", 30),
            (86_400, "jobq.hold.4", "1.5.1.8.0.a", 86_400),
            (1_048_575, "jobq.hold.4", "f.f.f.f.f.a", 1_048_575),
        ],
    )
    def test_a_delay_is_rounded_up_and_written_in_digits(
        self, delay: float, exchange: str, key: str, held: int
    ) -> None:
        route = Topology().route("a", delay)
        assert (route.exchange, route.key, route.held) == (exchange, key, held)

    @pytest.mark.contract(140)
    @pytest.mark.parametrize("delay", [1_048_575.5, 1_048_576, 86_400 * 50, 86_400 * 400, 1e12])
    def test_b81_a_delay_beyond_the_ceiling_is_held_for_the_maximum(self, delay: float) -> None:
        assert MAX_HOLD == 1_048_575
        assert Topology().route("a", delay).held == MAX_HOLD
        assert Topology().route("a", delay).key == "f.f.f.f.f.a"

    @pytest.mark.contract(136)
    def test_every_delay_takes_queues_that_add_up_to_it(self) -> None:
        topology = Topology()
        ttl = {
            name: item.arguments["x-message-ttl"]
            for name, item in named(shared(), Queue).items()
            if ".hold." in name
        }
        for seconds in [*range(1, 600), 4095, 4096, 65_535, 65_536, 1_000_000, MAX_HOLD]:
            route = topology.route("x.y", seconds)
            passed = follow(shared(), route.exchange, route.key)
            assert sum(ttl[name] for name in passed) == seconds * 1000
            assert len(passed) <= LEVELS

    # Purity

    @pytest.mark.contract(137, 158)
    @pytest.mark.parametrize("queue_type", TYPES)
    def test_only_name_type_priority_and_ttl_shape_a_queue(self, queue_type: QueueType) -> None:
        topology = Topology(queue_type=queue_type)
        plain = list(topology.work(QueueConfig(name="a")))
        other = QueueConfig(name="a", prefetch=99, retry=RetryPolicy(max_attempts=9))
        assert list(topology.work(other)) == plain
        assert list(topology.shared()) == list(topology.shared())

    @pytest.mark.contract(158)
    @pytest.mark.parametrize("queue_type", TYPES)
    def test_the_prefix_and_the_type_are_everywhere(self, queue_type: QueueType) -> None:
        topology = Topology(prefix="shop", queue_type=queue_type, hold_type=queue_type)
        items = [*topology.shared(), *topology.work(QueueConfig(name="a"))]
        for item in items:
            texts = [value for value in dataclasses.asdict(item).values() if isinstance(value, str)]
            assert any(re.match(r"shop(\.|$)", text) for text in texts)
            assert not any("jobq" in text for text in texts)
            if isinstance(item, Queue):
                assert item.arguments["x-queue-type"] == queue_type
        assert topology.route("a").exchange == "shop"
        assert topology.route("a", 1).exchange == "shop.hold.0"

    @pytest.mark.contract(138)
    @pytest.mark.parametrize(
        ("hold_type", "level", "held", "expected"),
        [
            ("classic", 0, True, 0),
            ("classic", 9, True, 9),
            ("quorum", 0, False, 0),
            ("quorum", 0, True, 5),
            ("quorum", 4, True, 5),
            ("quorum", 8, True, 8),
        ],
    )
    def test_what_a_quorum_queue_holds_has_the_high_class(
        self, hold_type: QueueType, level: int, held: bool, expected: int
    ) -> None:
        assert Topology(hold_type=hold_type).priority(level, held=held) == expected

    @pytest.mark.contract(44, 102)
    @pytest.mark.parametrize(
        ("queue_type", "level", "expected"),
        [
            ("classic", 0, 0),
            ("classic", 3, 3),
            ("quorum", 0, 5),
            ("quorum", 3, 5),
            ("quorum", 9, 9),
        ],
    )
    def test_the_top_of_a_quorum_queue_is_in_the_high_class(
        self, queue_type: QueueType, level: int, expected: int
    ) -> None:
        assert Topology(queue_type=queue_type).priority(level, top=True) == expected

    # Names

    @pytest.mark.contract(150)
    @pytest.mark.parametrize(
        ("name", "too_long"),
        [("x" * 245, False), ("x" * 246, True), ("é" * 122, False), ("é" * 130, True)],
    )
    def test_b69_a_name_is_measured_in_bytes_with_everything_around_it(
        self, name: str, too_long: bool
    ) -> None:
        topology = Topology(prefix="jobq")
        config = QueueConfig(name=name)
        problem = topology.check_name(config)
        assert (problem is not None) == too_long
        longest = max(
            len(text.encode())
            for item in topology.work(config)
            for text in (getattr(item, "name", ""), getattr(item, "key", ""))
        )
        assert (longest > 255) == too_long
        if problem:
            assert "255" in problem
            assert repr(name) in problem

    # Operations

    @pytest.mark.contract(159)
    def test_a_check_declares_nothing(self) -> None:
        queue = QueueConfig(name="a", revision=3)
        for operation in operations.check([*Topology().shared(), *Topology().work(queue)]):
            assert operation.arguments["passive"] is True
            assert operation.method in ("queue_declare", "exchange_declare")

    @pytest.mark.contract(134, 135, 136)
    def test_everything_is_durable(self) -> None:
        topology = Topology()
        items = [*topology.shared(), *topology.work(QueueConfig(name="a"))]
        for operation in operations.declare(items):
            if "declare" in operation.method:
                assert operation.arguments["durable"] is True
                assert "auto_delete" not in operation.arguments


def follow(items: list[Declaration], exchange: str, key: str) -> list[str]:
    """Return the hold queues that a message passes on its way to the return exchange."""
    bindings = [item for item in items if isinstance(item, Binding)]
    queues = named(items, Queue)
    passed = []
    while exchange != "jobq.return":
        (taken,) = [b for b in bindings if b.source == exchange and matches(b.key, key)]
        if taken.to_exchange:
            exchange = taken.target
        else:
            passed.append(taken.target)
            exchange = queues[taken.target].arguments["x-dead-letter-exchange"]
    return passed


def matches(pattern: str, key: str) -> bool:
    """Return whether a topic binding takes a routing key, in the broker's way."""
    regex = "".join(
        {"*": "[^.]+", "#": ".*"}.get(part, re.escape(part)) + r"\." for part in pattern.split(".")
    )
    return re.fullmatch(regex.removesuffix(r"\."), key) is not None


def test_the_matcher_knows_stars_and_hashes() -> None:
    assert matches("*.0.#", "1.0.2.3.4.a.b")
    assert not matches("*.0.#", "0.1.2.3.4.a")

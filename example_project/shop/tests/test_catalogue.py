"""Every line of a file is accounted for, and nothing that is wrong gets in."""

from __future__ import annotations

import random

import pytest

from shop.catalogue import Catalogue, CatalogueError, read_catalogue
from shop.data.make_catalogue import build
from shop.imports import SHIPPED

HEADER = b"sku,name,price,stock,released\n"


def read(*lines: bytes) -> Catalogue:
    return read_catalogue(HEADER + b"".join(line + b"\n" for line in lines))


def accounted_for(catalogue: Catalogue) -> int:
    good, bad = len(catalogue.articles), len(catalogue.problems)
    return catalogue.header + good + bad + catalogue.blank + catalogue.continued


def test_the_shipped_file_is_the_one_its_script_makes() -> None:
    assert SHIPPED.read_bytes() == build().data


def test_the_shipped_file_is_reported_as_its_script_broke_it() -> None:
    built = build()
    catalogue = read_catalogue(built.data)
    assert {problem.line: problem.kind for problem in catalogue.problems} == built.broken
    assert len(catalogue.articles) == built.good
    assert (catalogue.blank, catalogue.continued) == (built.blank, built.continued)
    assert accounted_for(catalogue) == catalogue.lines == built.lines


@pytest.mark.parametrize("seed", range(20))
def test_no_line_is_lost_whatever_the_bytes(seed: int) -> None:
    chance = random.Random(seed)
    body = bytearray(build().data.split(b"\n", 1)[1])
    for _ in range(400):
        body[chance.randrange(len(body))] = chance.choice(b'"",;\n\r\x00\xe9 a9')
    data = HEADER + bytes(body)
    catalogue = read_catalogue(data)
    assert accounted_for(catalogue) == catalogue.lines == len(data.removesuffix(b"\n").split(b"\n"))


def test_a_good_line_is_read_as_it_is_meant() -> None:
    [article] = read(b' MUG-01 ,"Mug, ""blue""\r\n  (pair)",  4.5,7,2024-05-31\r').articles
    assert (article.sku, article.name) == ("MUG-01", 'Mug, "blue" (pair)')
    assert (str(article.price), article.stock) == ("4.5", 7)
    assert article.released.isoformat() == "2024-05-31"


def test_a_quote_that_is_never_closed_costs_one_line() -> None:
    catalogue = read(
        b'MUG-01,"Mug,4.50,7,2024-05-31',
        b'MUG-02,"Mug, red",4.50,7,2024-05-31',
        b"MUG-03,Mug,4.50,7,2024-05-31",
    )
    assert [problem.what for problem in catalogue.problems] == ["a quoted field is never closed"]
    assert [article.sku for article in catalogue.articles] == ["MUG-02", "MUG-03"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"MUG-01,Mug,4.50,7", "4 columns instead of 5"),
        (b"Sum", "1 column instead of 5"),
        (b"MUG-01,M\xfcg,4.50,7,2024-05-31", "byte 0xfc at position 9 is not UTF-8"),
        (b"MUG-01,M\x00g,4.50,7,2024-05-31", "control character U+0000 at position 9"),
        (b"MUG-01,M\rg,4.50,7,2024-05-31", "a carriage return in the middle of the line"),
        (
            b"MUG-01," + b"g" * 200_000 + b",1,7,2024-05-31",
            "a field is longer than any field should be",
        ),
        (b'MUG-01,Mug,"4,50",7,2024-05-31', "the price “4,50” has a decimal comma"),
        (b'MUG-01,Mug,"4,500",7,2024-05-31', "the price “4,500” may be thousands or thousandths"),
        (b"MUG-01,Mug,4 500.00,7,2024-05-31", "the price “4 500.00” has thousands separators"),
        (b"MUG-01,Mug,-4.50,7,2024-05-31", "the price “-4.50” is negative"),
        (b"MUG-01,Mug,9999999,7,2024-05-31", "the price “9999999” is out of range"),
        (b"MUG-01,=1+1,4.50,7,2024-05-31", "the name is a spreadsheet formula"),
        (b"MUG-01,Mug,4.50,7,20240531", "“20240531” is no date like 2024-05-31"),
        (b"MUG-01,Mug,4.50,7,1066-10-14", "the date 1066-10-14 cannot be right"),
    ],
)
def test_a_bad_line_is_reported_by_what_is_wrong(line: bytes, what: str) -> None:
    catalogue = read(line, b"MUG-02,Mug,4.50,7,2024-05-31")
    assert [(problem.line, problem.what) for problem in catalogue.problems] == [(2, what)]
    assert [article.sku for article in catalogue.articles] == ["MUG-02"]


def test_what_was_read_is_shown_harmlessly_and_not_at_length() -> None:
    [problem] = read(b"\x00\xff" + b"x" * 500).problems
    assert problem.read.startswith("\\x00\\xffxxx")
    assert problem.read.endswith("… (508 characters)")


def test_the_first_of_two_lines_with_one_sku_counts() -> None:
    catalogue = read(b"MUG-01,One,1,7,2024-05-31", b"MUG-01,Two,2,7,2024-05-31")
    assert [article.name for article in catalogue.articles] == ["One"]
    assert [problem.what for problem in catalogue.problems] == ["MUG-01 is already on line 2"]


@pytest.mark.parametrize("data", [b"", b"a,b\n", b'"\n', b"\xff\n"])
def test_a_file_without_the_header_is_refused(data: bytes) -> None:
    with pytest.raises(CatalogueError, match="the first line has to name the columns sku, name"):
        read_catalogue(data)

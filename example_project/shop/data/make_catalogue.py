"""Make catalogue.csv: about a thousand lines, broken in the ways real files are broken.

The same seed gives the same bytes. `build()` also says which line is broken and how, and does so
without the code that reads the file: the tests compare the two.

    python make_catalogue.py      writes catalogue.csv beside this file
"""

from __future__ import annotations

import dataclasses
import datetime
import random
from collections.abc import Callable
from pathlib import Path

SEED = 20240531
ROWS = 960
HEADER = "sku,name,price,stock,released"
HERE = Path(__file__).resolve().parent

_COLOURS = ["black", "blue", "cherry", "copper", "cream", "green", "grey", "linen", "red", "teal"]
_THINGS = {
    "Armchair": "ARM",
    "Bookend": "BKE",
    "Bread bin": "BRD",
    "Candle": "CND",
    "Clock": "CLK",
    "Cutting board": "CUT",
    "Desk lamp": "LMP",
    "Door stop": "DST",
    "Kettle": "KET",
    "Mirror": "MIR",
    "Mug": "MUG",
    "Notebook": "NTB",
    "Pencil case": "PNC",
    "Rug": "RUG",
    "Salt mill": "SLT",
    "Tea towel": "TWL",
    "Teapot": "TEA",
    "Vase": "VAS",
}
_EXTRAS = [
    "",
    "",
    "",
    ", small",
    ", large",
    ", set of 4",
    " “Sjövik”",
    " “Café”",
    " à la carte",
    ' 12"',
    " & lid",
    " (2nd edition)",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """A file, and what is in it."""

    data: bytes
    broken: dict[int, str]  # the line and the kind of what is wrong with it
    good: int
    blank: int
    continued: int

    @property
    def lines(self) -> int:
        """Return how many lines the file has."""
        return 1 + self.good + len(self.broken) + self.blank + self.continued


@dataclasses.dataclass(slots=True)
class _Row:
    sku: str
    name: str
    price: str
    stock: str
    released: str

    def text(self) -> str:
        return ",".join(
            [self.sku, _field(self.name), _field(self.price), self.stock, self.released]
        )


def _field(text: str) -> str:
    """Quote a field only where it must be, as most programs do."""
    if any(sign in text for sign in ',"\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _with(**changes: str) -> Callable[[_Row], bytes]:
    return lambda row: dataclasses.replace(row, **changes).text().encode()


def _latin_1(row: _Row) -> bytes:
    return dataclasses.replace(row, name="Crème brûlée dish").text().encode("latin-1")


def _bare_quotes(row: _Row) -> bytes:
    return f'{row.sku},"Print "Moon", framed",{row.price},{row.stock},{row.released}'.encode()


def _open_quote(row: _Row) -> bytes:
    return f'{row.sku},"Screen 27 inches,{row.price},{row.stock},{row.released}'.encode()


def _short(row: _Row) -> bytes:
    return row.text().rpartition(",")[0].encode()


def _unquoted_comma(row: _Row) -> bytes:
    return f"{row.sku},Shelf, oak,{row.price},{row.stock},{row.released}".encode()


def _semicolons(row: _Row) -> bytes:
    return f"{row.sku};Shelf;{row.price};{row.stock};{row.released}".encode()


def _page_break(row: _Row) -> bytes:
    return dataclasses.replace(row, name="Page\x0cturner").text().encode()


# Each way to break a line: the kind under which the report should name it, and the line.
FAULTS: list[tuple[str, Callable[[_Row], bytes]]] = [
    ("encoding", _latin_1),
    ("quotes", _bare_quotes),
    ("quotes", _open_quote),
    ("columns", _short),
    ("columns", _unquoted_comma),
    ("columns", _semicolons),
    ("columns", lambda row: row.text().encode() + b",,"),
    ("columns", lambda row: b"Total articles on this page"),
    ("control", _with(name="Jar\x00 of nothing")),
    ("control", _page_break),
    ("name", _with(name="")),
    ("name", _with(name="   ")),
    ("formula", _with(name='=HYPERLINK("http://shop.example","Win")')),
    ("formula", _with(name="+49 30 123456")),
    ("formula", _with(name="@SUM(A1:A9)")),
    ("too_long", _with(name="Very " * 300 + "long")),
    ("price", _with(price="12,50")),
    ("price", _with(price="1,299.00")),
    ("price", _with(price="1.299,00")),
    ("price", _with(price="1 299.00")),
    ("price", _with(price="€ 9.90")),
    ("price", _with(price="$9.90")),
    ("price", _with(price="9.90 EUR")),
    ("price", _with(price="-4.00")),
    ("price", _with(price="0.00")),
    ("price", _with(price="12.345")),
    ("price", _with(price="free")),
    ("price", _with(price="1e3")),
    ("price", _with(price="NaN")),
    ("price", _with(price="")),
    ("stock", _with(stock="-3")),
    ("stock", _with(stock="a few")),
    ("stock", _with(stock="3.5")),
    ("stock", _with(stock="²")),
    ("stock", _with(stock="99999999999999999999")),
    ("date", _with(released="0000-00-00")),
    ("date", _with(released="2023-02-30")),
    ("date", _with(released="31.05.2024")),
    ("date", _with(released="05/31/24")),
    ("date", _with(released="1024-05-31")),
    ("date", _with(released="9999-12-31")),
    ("date", _with(released="45443")),
    ("date", _with(released="")),
    ("sku", _with(sku="")),
    ("sku", _with(sku="1.2E+10")),
    ("sku", _with(sku="mug 12")),
]

BLANKS = [b"", b"   ", b",,,,", b"\t", b' , ,"",, ']


def build(seed: int = SEED) -> Built:
    """Return the file and the account of it."""
    chance = random.Random(seed)
    rows = [_make_row(chance, number) for number in range(ROWS)]
    places = iter(sorted(chance.sample(range(20, ROWS - 10), len(FAULTS) * 2 + len(BLANKS) * 2)))
    # Every fault and every kind of blank line twice, in any order.
    oddities: list[tuple[str, Callable[[_Row], bytes]]] = [
        *FAULTS * 2,
        *[("blank", lambda row, blank=blank: blank) for blank in BLANKS * 2],
    ]
    chance.shuffle(oddities)
    return _assemble(chance, rows, dict(zip(places, oddities, strict=True)))


def _assemble(
    chance: random.Random,
    rows: list[_Row],
    oddities: dict[int, tuple[str, Callable[[_Row], bytes]]],
) -> Built:
    lines = [HEADER.encode()]
    broken: dict[int, str] = {}
    good = blank = continued = 0
    for number, row in enumerate(rows):
        kind, render = oddities.get(number, ("", _render_good))
        text = render(_on_one_line(row) if kind else row)
        if kind == "blank":
            blank += 1
        elif kind:
            broken[len(lines) + 1] = kind
        else:
            good += 1
            continued += text.count(b"\n")
        lines += text.split(b"\n")
        if not kind and number % 137 == 100:
            broken[len(lines) + 1] = "duplicate"
            lines.append(_with(price="1.00")(_on_one_line(row)))
    broken[len(lines) + 1] = "columns"
    ends = [b"\r\n" if chance.random() < 0.05 else b"\n" for _ in lines]
    body = b"".join(line + end for line, end in zip(lines, ends, strict=True))
    data = b"\xef\xbb\xbf" + body + b'VAS-ZZ99,"Vase, tall",49.0'
    return Built(data=data, broken=broken, good=good, blank=blank, continued=continued)


def _render_good(row: _Row) -> bytes:
    return row.text().encode()


def _on_one_line(row: _Row) -> _Row:
    return dataclasses.replace(row, name=row.name.replace("\n", " "))


def _make_row(chance: random.Random, number: int) -> _Row:
    thing = chance.choice(sorted(_THINGS))
    name = f"{thing} {chance.choice(_COLOURS)}{chance.choice(_EXTRAS)}"
    if number % 90 == 7:
        name = f"{name}\n(please order in pairs)"
    if number % 60 == 11:
        name = f" {name}   "
    day = datetime.date(2005, 1, 1) + datetime.timedelta(days=chance.randrange(7000))
    return _Row(
        sku=f"{_THINGS[thing]}-{number:04}",
        name=name,
        price=f"{chance.randrange(150, 24000) / 100:.{chance.choice([1, 2, 2, 2])}f}",
        stock=str(chance.randrange(200)),
        released=day.isoformat(),
    )


if __name__ == "__main__":
    (HERE / "catalogue.csv").write_bytes(build().data)

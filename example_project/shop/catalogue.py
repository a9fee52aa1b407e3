"""Read a catalogue, a CSV file as people really send it, and lose nothing.

1. The file is cut into lines; a line that is no UTF-8 or has control characters is a problem.
2. A line whose quoted field is still open goes on in the next lines, at most `MAX_CONTINUED` of
   them. If the quote is not closed properly by then, that line alone is a problem and the reading
   goes on behind it, so that one stray quote cannot swallow the rest of the file.
3. A row becomes an `Article` if all its fields are what they should be. Nothing is guessed: 1,234
   may be a thousand or a bit more than one.

Every line is counted once: lines = header + good + bad + blank + continued.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import re
from collections.abc import Iterator
from decimal import Decimal

from shop.models import ProblemKind

COLUMNS = ["sku", "name", "price", "stock", "released"]
MAX_CONTINUED = 3
MAX_NAME = 120
MAX_READ = 160
MAX_PRICE = Decimal("100000")
MAX_STOCK = 1_000_000
FIRST_DAY = datetime.date(1950, 1, 1)
LAST_DAY = datetime.date(2035, 12, 31)

_SKU = re.compile(r"[A-Z]{2,6}-[A-Z0-9]{2,10}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PRICE = re.compile(r"[0-9]+(\.[0-9]{1,2})?")
_PRICE_COMPLAINTS = [
    (re.compile(r"^$"), "the price is empty"),
    (re.compile(r"[€$£]|EUR|USD"), "the price {} has a currency sign"),
    (re.compile(r"^[-−]"), "the price {} is negative"),
    (re.compile(r"^[0-9]+,[0-9]{1,2}$"), "the price {} has a decimal comma"),
    (re.compile(r"^[0-9]+[.,][0-9]{3}$"), "the price {} may be thousands or thousandths"),
    (
        re.compile(r"^[0-9]{1,3}([,.' \xa0][0-9]{3})+([.,][0-9]{2})?$"),
        "the price {} has thousands separators",
    ),
]
# Tab, carriage return and line feed are the only control characters a text has a use for.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class CatalogueError(Exception):
    """The file as a whole is no catalogue."""


class RowError(Exception):
    """A row cannot be imported."""

    def __init__(self, kind: ProblemKind, what: str) -> None:
        self.kind = kind
        self.what = what
        super().__init__(what)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """A row that is what it should be."""

    sku: str
    name: str
    price: Decimal
    stock: int
    released: datetime.date


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A line that cannot be imported."""

    line: int
    kind: ProblemKind
    what: str
    read: str


@dataclasses.dataclass(slots=True, kw_only=True)
class Catalogue:
    """What a file contained, and what became of each of its lines."""

    articles: list[Article] = dataclasses.field(default_factory=list)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    lines: int = 0
    header: int = 0
    blank: int = 0
    continued: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    line: int
    raw: bytes
    fields: list[str] | RowError
    continued: int = 0


def read_catalogue(data: bytes) -> Catalogue:
    """Sort the lines of a file into articles, problems and blanks."""
    rows = _rows(data.removeprefix(b"\xef\xbb\xbf"))
    header = next(rows, None)
    if header is None or _header_names(header) != COLUMNS:
        raise CatalogueError(f"the first line has to name the columns {', '.join(COLUMNS)}")
    catalogue = Catalogue(lines=1 + header.continued, header=1, continued=header.continued)
    line_of: dict[str, int] = {}
    for row in rows:
        catalogue.lines += 1 + row.continued
        catalogue.continued += row.continued
        _sort_in(row, catalogue, line_of)
    return catalogue


def _sort_in(row: _Row, catalogue: Catalogue, line_of: dict[str, int]) -> None:
    if _is_blank(row):
        catalogue.blank += 1
        return
    try:
        article = _article(row)
        if article.sku in line_of:
            first = line_of[article.sku]
            raise RowError(ProblemKind.DUPLICATE, f"{article.sku} is already on line {first}")
    except RowError as error:
        catalogue.problems.append(
            Problem(line=row.line, kind=error.kind, what=error.what, read=_shown(row.raw))
        )
        return
    line_of[article.sku] = row.line
    catalogue.articles.append(article)


def _rows(data: bytes) -> Iterator[_Row]:
    lines = data.split(b"\n")
    is_cut_off = lines[-1] != b""
    if not is_cut_off:
        lines.pop()
    at = 0
    while at < len(lines):
        row = _row_at(lines, at)
        at += 1 + row.continued
        yield _as_cut_off(row) if is_cut_off and at == len(lines) else row


def _row_at(lines: list[bytes], at: int) -> _Row:
    try:
        for continued in range(MAX_CONTINUED + 1):
            raw = b"\n".join(lines[at : at + 1 + continued])
            fields = _split(_decode(raw))
            if fields is not None and (not continued or len(fields) == len(COLUMNS)):
                return _Row(line=at + 1, raw=raw, fields=fields, continued=continued)
    except RowError as error:
        # The first line is to blame, unless it is fine until another one is added to it.
        wrong = error if continued == 0 else _open_quote()
        return _Row(line=at + 1, raw=lines[at], fields=wrong)
    return _Row(line=at + 1, raw=lines[at], fields=_open_quote())


def _open_quote() -> RowError:
    return RowError(ProblemKind.QUOTES, "a quoted field is never closed")


def _as_cut_off(row: _Row) -> _Row:
    """Blame the end of the file, unless the row is whole; a date shows whether it is."""
    if isinstance(row.fields, RowError):
        is_whole = row.fields.kind != ProblemKind.QUOTES
    else:
        is_whole = _is_blank(row) or len(row.fields) == len(COLUMNS)
    if is_whole:
        return row
    error = RowError(ProblemKind.COLUMNS, "the file ends in the middle of this line")
    return dataclasses.replace(row, fields=error)


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        what = f"byte 0x{raw[error.start]:02x} at position {error.start + 1} is not UTF-8"
        raise RowError(ProblemKind.ENCODING, what) from error
    if found := _CONTROL.search(text):
        what = f"control character U+{ord(found[0]):04X} at position {found.start() + 1}"
        raise RowError(ProblemKind.CONTROL, what)
    return text


def _split(text: str) -> list[str] | None:
    """Return the fields of a row, or None if a quoted field is still open at its end."""
    try:
        rows = list(csv.reader([text.removesuffix("\r")], strict=True))
    except csv.Error as error:
        if "unexpected end" in str(error):
            return None
        raise _csv_complaint(str(error)) from error
    return [field.strip() for field in rows[0]] if rows else []


def _csv_complaint(message: str) -> RowError:
    if "field limit" in message:
        return RowError(ProblemKind.TOO_LONG, "a field is longer than any field should be")
    if "new-line" in message:
        return RowError(ProblemKind.CONTROL, "a carriage return in the middle of the line")
    return RowError(ProblemKind.QUOTES, "a quote inside a quoted field is not doubled")


def _header_names(row: _Row) -> list[str]:
    return [] if isinstance(row.fields, RowError) else [name.lower() for name in row.fields]


def _is_blank(row: _Row) -> bool:
    return not isinstance(row.fields, RowError) and not any(row.fields)


def _article(row: _Row) -> Article:
    if isinstance(row.fields, RowError):
        raise row.fields
    if len(row.fields) != len(COLUMNS):
        found = len(row.fields)
        what = f"{found} column{'s' * (found != 1)} instead of {len(COLUMNS)}"
        raise RowError(ProblemKind.COLUMNS, what)
    sku, name, price, stock, released = row.fields
    return Article(
        sku=_read_sku(sku),
        name=_read_name(name),
        price=_read_price(price),
        stock=_read_stock(stock),
        released=_read_date(released),
    )


def _read_sku(text: str) -> str:
    if not text:
        raise RowError(ProblemKind.SKU, "the SKU is empty")
    if not _SKU.fullmatch(text):
        raise RowError(ProblemKind.SKU, f"{_quoted(text)} is no SKU")
    return text


def _read_name(text: str) -> str:
    name = " ".join(text.split())
    if not name:
        raise RowError(ProblemKind.NAME, "the name is empty")
    if name[0] in "=+-@":
        raise RowError(ProblemKind.FORMULA, "the name is a spreadsheet formula")
    if len(name) > MAX_NAME:
        what = f"the name has {len(name)} characters, {MAX_NAME} are allowed"
        raise RowError(ProblemKind.TOO_LONG, what)
    return name


def _read_price(text: str) -> Decimal:
    if not _PRICE.fullmatch(text):
        raise RowError(ProblemKind.PRICE, _price_complaint(text))
    price = Decimal(text)
    if not 0 < price < MAX_PRICE:
        raise RowError(ProblemKind.PRICE, f"the price {_quoted(text)} is out of range")
    return price


def _price_complaint(text: str) -> str:
    for pattern, what in _PRICE_COMPLAINTS:
        if pattern.search(text):
            return what.format(_quoted(text))
    return f"{_quoted(text)} is no price"


def _read_stock(text: str) -> int:
    # isdigit() alone also accepts digits that int() does not read, such as superscripts.
    if not (text.isascii() and text.isdigit() and len(text) < 8) or int(text) > MAX_STOCK:
        raise RowError(ProblemKind.STOCK, f"{_quoted(text)} is no number of pieces")
    return int(text)


def _read_date(text: str) -> datetime.date:
    if not text:
        raise RowError(ProblemKind.DATE, "the date is empty")
    try:
        # fromisoformat() alone also reads 20240531 and 2024-W22-5.
        day = datetime.date.fromisoformat(text if _DATE.fullmatch(text) else "")
    except ValueError as error:
        raise RowError(ProblemKind.DATE, f"{_quoted(text)} is no date like 2024-05-31") from error
    if not FIRST_DAY <= day <= LAST_DAY:
        raise RowError(ProblemKind.DATE, f"the date {text} cannot be right")
    return day


def _quoted(text: str) -> str:
    return f"“{text[:30]}…”" if len(text) > 31 else f"“{text}”"


def _shown(raw: bytes) -> str:
    """Return what was read as text that is safe to store and to show."""
    text = raw.removesuffix(b"\r").decode(errors="backslashreplace")
    text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return text if len(text) <= MAX_READ else f"{text[:MAX_READ]}… ({len(text)} characters)"

"""The view ``series``: the items of pages and rows alike, in plain SQL.

SQLite has no function that reads a number out of a blob, so it is put together from hexadecimal digits: slowly (some 30
µs a value), but in every program that speaks SQL. Python never reads this view.
"""

from __future__ import annotations

_ITEM, _DIGITS = "i", "'123456789ABCDEF'"  # instr() returns 0 for the digit that is not in it
_MAX_FRACTION, _MAX_EXPONENT = (1 << 52) - 1, 2047
_INFINITY = "9e999"  # which SQLite reads as infinity


def _bits(blob: str, offset: str = "0", size: str = "8", place: str = _ITEM) -> str:
    """Return SQL for the int64 of an item's bytes, the lowest first."""
    digits = [f"instr({_DIGITS}, substr(x, {n + 1}, 1)) << {4 * (n ^ 1)}" for n in range(16)]
    padded = f"hex(substr({blob}, {offset} + {size} * {place} + 1, {size})) || '00000000000000'"
    # LIMIT keeps SQLite from putting this expression in place of each x.
    return f"(SELECT {' | '.join(f'({digit})' for digit in digits)} FROM (SELECT {padded} AS x LIMIT 1))"


def _float(bits: str) -> str:
    """Return SQL for the float64 of an int64; NULL for NaN, which SQLite lacks."""
    powers = {1 << n: repr(float(1 << (1 << n))) for n in range(6)}  # 2.0 to 4294967296.0
    powers |= {n: f"({' * '.join([powers[32]] * (n // 32))})" for n in (64, 128, 256, 512)}
    # Multiplying by a power of two is exact, and so is dividing where the result is a float64.
    up = "".join(f" * (CASE WHEN e & {n} THEN {power} ELSE 1.0 END)" for n, power in powers.items())
    down = "".join(f" / (CASE WHEN -e & {n} THEN {power} ELSE 1.0 END)" for n, power in powers.items())
    rest = f" / (CASE WHEN -e & 1024 THEN {powers[512]} ELSE 1.0 END)" * 2
    special = f"CASE f WHEN {float(1 << 52)!r} THEN {_INFINITY} END"
    parts = (
        f"SELECT max((x >> 52) & {_MAX_EXPONENT}, 1) - 1075 AS e, x < 0 AS negative, "
        f"((x & {_MAX_FRACTION}) | CASE WHEN (x >> 52) & {_MAX_EXPONENT} THEN {1 << 52} ELSE 0 END) * 1.0 AS f "
        f"FROM (SELECT {bits} AS x LIMIT 1) LIMIT 1"
    )
    return (
        f"(SELECT (CASE WHEN negative THEN -1.0 ELSE 1.0 END) * CASE WHEN e = {_MAX_EXPONENT - 1075} THEN {special} "
        f"WHEN e >= 0 THEN f{up} ELSE f{down}{rest} END FROM ({parts}))"
    )


_SIZE = "(CASE json_extract(c.value, '$[0]') WHEN 'q' THEN 8 WHEN 'd' THEN 8 WHEN 'H' THEN 2 ELSE 1 END)"
_OFFSET = "json_extract(c.value, '$[1]')"
_CELLS = (  # of one item, one for each column
    f"SELECT code, texts, CASE code WHEN 'd' THEN {_float('bits')} ELSE bits END AS cell FROM (SELECT c.key, "
    "json_extract(c.value, '$[0]') AS code, json_extract(c.value, '$[2]') AS texts, "
    f"{_bits('columns', _OFFSET, _SIZE)} AS bits FROM json_each(layout) AS c ORDER BY c.key)"
)
_JSON = (
    "CASE code WHEN '?' THEN iif(cell, 'true', 'false') WHEN 'q' THEN CAST(cell AS TEXT) WHEN 'd' THEN CASE "
    f"WHEN abs(cell) = {_INFINITY} THEN iif(cell < 0, '-{_INFINITY}', '{_INFINITY}') "
    "ELSE coalesce(printf('%!.17g', cell), 'null') END ELSE json_quote(json_extract(texts, '$[' || cell || ']')) END"
)

_EVENT = (
    f"CASE WHEN count > 2 AND length(events) = 16 THEN {_bits('events', place='0')} + {_ITEM} * "
    f"{_bits('events', place='1')} ELSE {_bits('events')} END"
)

SERIES = f"""
CREATE VIEW series AS
    SELECT streams.name AS stream, items.number, items.event, rank, time, wall, value, packed
    FROM items JOIN streams ON streams.id = items.stream WHERE flags & 2 = 0
UNION ALL
    SELECT stream, number, event, rank, time, time + clock, value,
        CASE WHEN rows THEN '[' || cells || ']' WHEN value IS NULL THEN nullif(cells, 'null') END
    FROM (
        WITH RECURSIVE place({_ITEM}) AS (
            SELECT 0 UNION ALL SELECT {_ITEM} + 1 FROM place WHERE {_ITEM} + 1 < (SELECT max(count) FROM pages)
        )
        SELECT streams.name AS stream, pages.first + {_ITEM} AS number, {_EVENT} AS event, rank,
            {_float(_bits("times"))} AS time, clock, rows,
            (SELECT CASE WHEN NOT rows AND code IN ('q', 'd', '?') THEN cell END FROM ({_CELLS})) AS value,
            (SELECT group_concat({_JSON}, ',') FROM ({_CELLS})) AS cells
        FROM pages JOIN streams ON streams.id = pages.stream JOIN place ON {_ITEM} < count
    );
"""

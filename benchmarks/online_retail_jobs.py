"""Online Retail as a job reads it that foresees what customers buy next.

| file | rows | columns |
|---|---|---|
| next_item/train | what customers bought before the split | history: up to 50 items before it |
| next_item/evaluate | what they bought after it | history; targets: that item, as a list |
| next_item/tune, next_item/validate | the same of next_item/train alone: to choose settings by | |
| items | all products | description: the most frequent one |
| item_names | their stock codes, one a line | |

Each has user_id, item_id (a stock code) and the time `at`. A history ends before the invoice of its target: what is on
one invoice was bought at once. A product counts once an invoice. There is no column `seen`: shops buy the same again.

Shapes: N lines of invoices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import online_retail
import pyarrow as pa
import pyarrow.compute as pc
from histories import firsts, runs

EVALUATE_FROM: Final = np.datetime64("2011-11-10")
VALIDATE_FROM: Final = np.datetime64("2011-10-17")
COLUMNS: Final = ("CustomerID", "InvoiceDate", "InvoiceNo", "StockCode", "Quantity", "Description")
LONGEST: Final = 50
"""Items in a history."""
PRODUCT: Final = r"^\d{5}[A-Z]{0,2}$"
"""Stock codes of products; others are postage, fees, vouchers and corrections."""


def files() -> Iterator[tuple[str, pa.Table | list[str]]]:
    """Every file's name and what is in it: a table, or names.

    Raises:
        DataError: the data isn't there.
    """
    lines = _lines(online_retail.read(COLUMNS))
    users_N, items_N, times_N = (lines[name].to_numpy() for name in ("CustomerID", "StockCode", "InvoiceDate"))
    # Lines are by customer and time, so an invoice is a run of one customer and one minute.
    begins_N = firsts(users_N)
    baskets_N = np.maximum(begins_N, firsts(times_N))
    begun_N = baskets_N > begins_N
    before_N = times_N < EVALUATE_FROM
    for name, side_N in (
        ("train", before_N),
        ("evaluate", ~before_N),
        ("tune", times_N < VALIDATE_FROM),
        ("validate", before_N & (times_N >= VALIDATE_FROM)),
    ):
        places = np.flatnonzero(begun_N & side_N)
        places = places[np.argsort(times_N[places], kind="stable")]
        columns = {
            "user_id": pa.array(users_N[places]),
            "history": runs(begins_N[places], baskets_N[places], items_N, LONGEST),
            "item_id": pa.array(items_N[places], pa.string()),
            "at": pa.array(times_N[places]),
        }
        if name in ("evaluate", "validate"):
            columns["targets"] = runs(places, places + 1, items_N, 1)
        yield f"next_item/{name}", pa.table(columns)
    items = _items(lines)
    yield "items", items
    yield "item_names", items["item_id"].to_pylist()


def _lines(table: pa.Table) -> pa.Table:
    """What known customers bought, by customer and time; each product once an invoice."""
    table = table.set_column(table.schema.get_field_index("StockCode"), "StockCode", pc.utf8_upper(table["StockCode"]))
    bought = pc.and_(pc.greater(table["Quantity"], 0), pc.invert(pc.starts_with(table["InvoiceNo"], "C")))
    product = pc.match_substring_regex(table["StockCode"], PRODUCT)
    table = table.filter(pc.and_(pc.is_valid(table["CustomerID"]), pc.and_(bought, product)))
    keys = ["CustomerID", "InvoiceDate", "StockCode"]
    once = table.group_by(keys, use_threads=False).aggregate([("Description", "first")])
    return once.sort_by([("CustomerID", "ascending"), ("InvoiceDate", "ascending")])


def _items(lines: pa.Table) -> pa.Table:
    """Every product once, with the description that it has most often."""
    named = lines.group_by(["StockCode", "Description_first"]).aggregate([([], "count_all")])
    order = [("StockCode", "ascending"), ("count_all", "descending"), ("Description_first", "ascending")]
    items = named.sort_by(order).group_by("StockCode", use_threads=False).aggregate([("Description_first", "first")])
    columns = (items[name].cast(pa.string()) for name in ("StockCode", "Description_first_first"))
    return pa.table(dict(zip(("item_id", "description"), columns, strict=True)))

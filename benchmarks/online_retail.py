"""UCI Online Retail as arrays: who bought what, in the order of time.

The data is D. Chen's ("Online Retail", UCI Machine Learning Repository, 2015): the invoices of a British retailer from
December 2010 to December 2011. It isn't part of this project: `load` reads it from the folder of shared data beside the
project, and says so where it is absent.

Shapes: N lines of invoices, H lines of a history.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from movielens import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow
    from numpy.typing import NDArray

PATH: Final = Path(__file__).parents[1] / "../shared/data/online_retail/online_retail.parquet"
COLUMNS: Final = ("StockCode", "Quantity", "InvoiceDate", "CustomerID")
NOBODY: Final = -1
"""Stands in a history for what came before a customer's first line."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Retail:
    """The lines by known customers that are no returns, in the order of time."""

    customers: NDArray[np.int64]
    """int64 [N]: who bought, from 0,"""
    items: NDArray[np.int64]
    """int64 [N]: which stock code, from 0,"""
    times: NDArray[np.datetime64]
    """datetime64 [N]: when, to the minute."""
    customer_count: int
    """Customers,"""
    item_count: int
    """and stock codes."""

    def histories(self, length: int) -> NDArray[np.int64]:
        """int64 [N, H]: the items of the lines before each that the customer had bought, the latest first."""
        order = np.argsort(self.customers, kind="stable")
        customers_N, items_N = self.customers[order], self.items[order]
        histories_NH = np.full((len(order), length), NOBODY)
        for back in range(1, length + 1):
            same_N = customers_N[back:] == customers_N[:-back]
            histories_NH[order[back:], back - 1] = np.where(same_N, items_N[:-back], NOBODY)
        return histories_NH


def load() -> Retail:
    """Reads the data set.

    Raises:
        DataError: it isn't there, or can't be read.
    """
    table = read(COLUMNS)
    codes_N, counts_N, times_N, customers_N = (table.column(name).to_numpy() for name in COLUMNS)
    # Lines without a customer can't be learned from, and those of no quantity or less are returns and corrections.
    known_N = ~np.isnan(customers_N.astype(np.float64)) & (counts_N > 0)
    order = np.flatnonzero(known_N)[np.argsort(times_N[known_N], kind="stable")]
    customers_N, customer_count = _numbered(customers_N[order].astype(np.int64))
    items_N, item_count = _numbered(codes_N[order].astype(str))
    return Retail(
        customers=customers_N,
        items=items_N,
        times=times_N[order],
        customer_count=customer_count,
        item_count=item_count,
    )


def read(columns: Sequence[str]) -> pyarrow.Table:
    """Columns of all lines, as they are.

    Raises:
        DataError: the data isn't there, or can't be read.
    """
    if not PATH.is_file():
        raise DataError("Online Retail isn't here: ../shared/data/online_retail is absent")
    try:
        import pyarrow.parquet  # only whoever runs the benchmark needs it
    except ImportError as error:
        raise DataError("Online Retail is a Parquet file, which needs pyarrow: pip install pyarrow") from error
    return pyarrow.parquet.read_table(PATH, columns=list(columns))


def _numbered(names_N: NDArray[np.int64] | NDArray[np.str_]) -> tuple[NDArray[np.int64], int]:
    """Numbers from 0 in place of names, shuffled so that no kind of table profits from the order of names; how many."""
    names, numbers_N = np.unique(names_N, return_inverse=True)
    return np.random.default_rng(len(names)).permutation(len(names))[numbers_N], len(names)

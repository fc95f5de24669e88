"""Cuts bags that are too long to their last ids."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from embershard.train.source import FEATURES


def cut(table: pa.Table, max_lengths: Mapping[str, int]) -> tuple[pa.Table, dict[str, int]]:
    """The same examples with bags of at most `max_lengths`, {feature: ids}; {feature: how many were longer}."""
    counts = {}
    for feature, longest in max_lengths.items():
        column = FEATURES + feature
        bags = table[column].combine_chunks()
        lengths_B = bags.value_lengths().to_numpy()
        counts[feature] = int((lengths_B > longest).sum())
        if counts[feature]:
            kept_B = np.minimum(lengths_B, longest)
            ends_B = np.cumsum(kept_B)
            # The places of the ids that stay: each bag's run up to where the bag ends.
            shifts_B = np.cumsum(lengths_B) - ends_B
            places_N = np.arange(ends_B[-1]) + np.repeat(shifts_B, kept_B)
            offsets = pa.array(np.concatenate(([0], ends_B)), pa.int64())
            shorter = pa.LargeListArray.from_arrays(offsets, bags.flatten().take(pa.array(places_N)))
            table = table.set_column(table.schema.get_field_index(column), column, shorter)
    return table, counts

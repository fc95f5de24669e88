"""Row → shard: every row lives exactly once, wherever the tables are cut."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from support.scenario import collection

from embershard.engine.placement import groups_of, moves

tables = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1, 3, 4])), min_size=1, max_size=5)


@given(tables, st.integers(1, 5))
def test_every_row_has_one_place_and_no_rank_is_empty(shapes: list[tuple[int, int]], world_size: int) -> None:
    config = collection([{"name": f"t{n}", "rows": rows, "dim": dim} for n, (rows, dim) in enumerate(shapes)])
    groups = groups_of(config, world_size)
    assert sorted(table for group in groups for table in group.slots) == sorted(t.name for t in config.tables)
    for group in groups:
        assert group.block_rows > 0
        places = set()
        for slot in group.slots.values():
            physical = slot.physical(torch.arange(slot.matrix.rows))
            owners, locals_ = group.owner(physical).tolist(), group.on_rank(physical).tolist()
            assert all(0 <= owner < world_size for owner in owners)
            for rank in range(world_size):
                start, stop = slot.held(rank)
                inside = slot.local(rank)
                assert [locals_[row] for row in range(start, stop)] == list(range(inside.start, inside.stop))
                assert all(owners[row] == rank for row in range(start, stop))
            places |= set(physical.tolist())
        assert len(places) == sum(slot.matrix.rows for slot in group.slots.values())


def test_tables_of_one_dim_dtype_and_optimizer_are_stacked() -> None:
    config = collection(
        [
            {"name": "a", "rows": 9, "dim": 4},
            {"name": "b", "rows": 9, "dim": 4},
            {"name": "c", "rows": 9, "dim": 4, "dtype": "float16"},
            {"name": "d", "rows": 9, "dim": 4, "optimizer": {"learning_rate": 0.1}},
            {"name": "e", "rows": 9, "dim": 5},
        ]
    )
    assert [list(group.slots) for group in groups_of(config, 2)] == [["a", "b"], ["c"], ["d"], ["e"]]


def test_rows_beyond_two_to_the_31_have_their_own_places() -> None:
    config = collection([{"name": "a", "rows": 2**33, "dim": 4}, {"name": "b", "rows": 7, "dim": 4}])
    (group,) = groups_of(config, 3)
    rows = torch.tensor([2**31 - 1, 2**31, 2**31 + 1, 2**33 - 1])
    physical = group.slots["a"].physical(rows)
    block = -(-(2**33) // 3)
    assert group.owner(physical).tolist() == [int(row) // block for row in rows]
    assert group.on_rank(physical).tolist() == [int(row) % block for row in rows]


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 5))
def test_a_stack_that_is_cut_anew_sends_every_row_to_where_it_then_is(rows: int, more: int, world_size: int) -> None:
    old, new = (
        groups_of(collection([{"name": "s", "rows": 7, "dim": 4}, {"name": "t", "rows": size, "dim": 4}]), world_size)[
            0
        ]
        for size in (rows, rows + more)
    )
    sent = [moves(old, new, rank, torch.arange(old.block_rows)) for rank in range(world_size)]
    expected = {}
    for name, count in (("s", 7), ("t", rows)):
        before, after = (group.slots[name].physical(torch.arange(count)).tolist() for group in (old, new))
        expected |= dict(zip(before, after, strict=True))
    found = {}
    for rank, (local, physical) in enumerate(sent):
        found |= dict(zip((local + rank * old.block_rows).tolist(), physical.tolist(), strict=True))
    assert found == expected

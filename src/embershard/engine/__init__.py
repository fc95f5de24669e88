"""The store of rows: two engines with one behaviour, and the tick in which they work."""

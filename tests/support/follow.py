"""A subject that takes over what another has learned, as a service does from a job."""

from __future__ import annotations

from pathlib import Path

from embershard.engine.delta import Written, write_delta
from embershard.engine.publication import Publication
from embershard.engine.touched import Changes
from embershard.store.delta_files import write_delta_file
from embershard.store.delta_reading import read_delta
from support.subject import Subject


def follow(follower: Subject, changes: Changes, folder: Path) -> Written:
    """Writes a file, reads it and serves it."""
    file = write_delta_file(folder, "job", 1, changes)
    publication = Publication(publisher="job", number=1, delta=True, files=[file], layout="")
    delta = read_delta(folder, publication, follower.engine, follower.engine.world.gather)
    assert delta.fits(follower.engine)
    return write_delta(follower.engine, delta)

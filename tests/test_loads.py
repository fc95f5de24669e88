"""Loads, where no service shows it: when there is no memory for one, on ranks that make tables jointly."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from embershard_server.loads import Loads
from embershard_server.start import start

from embershard.config import load_config
from embershard.engine.local import LocalEngine
from embershard.errors import ConfigError, Overloaded
from embershard.store import snapshot
from embershard.store.folder import DataDir

CONFIG = """
[collection]
name = "small"
[durability]
log = "none"
[[tables]]
name = "t"
rows = 6
dim = 2
"""


def refuse(*_: object, **__: object) -> NoReturn:
    raise ConfigError("there is no memory")


def test_a_load_without_memory_is_refused_each_time_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "collection.toml").write_text(CONFIG)
    config, data = load_config(tmp_path / "collection.toml"), DataDir(tmp_path)
    try:
        started = start(config, data)
        snapshot.save(started.replica.engine, None, 7, data.snapshots, keeping=snapshot.Keeping(kept=1))
        loads = Loads(started, data, config)
        monkeypatch.setattr(LocalEngine, "made_beside", False)
        with monkeypatch.context() as patched:
            patched.setattr("embershard_server.loads.make_engine", refuse)
            for _ in range(2):
                with pytest.raises(Overloaded, match="version 7 can't be loaded: there is no memory"):
                    loads.actions["load"](7)
        assert not loads.versions
        load = loads.actions["load"](7)
        load.filled.result(timeout=30)
        loads.actions["adopt"]((7, load.number))
        assert loads.versions == {7}
    finally:
        data.release()

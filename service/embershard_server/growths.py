"""Tables that grow while calls are answered: most of the work is done before, some rows a tick."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from embershard.engine.growth import Growing, Growth, check_room
from embershard.errors import EmbershardError, Overloaded
from embershard.store.agreement import everywhere, meeting
from embershard_server.joint import Joint, shielded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from embershard.engine.replica import Outcome, Replica
    from embershard.engine.tick import Action, Ticker


class Growths:
    """What the engine's thread does about it (`actions`, all joint), and what a caller asks for."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self._world = replica, replica.engine.world

    def serve(self, ticker: Ticker) -> None:
        """Before it ticks."""
        self._joint = Joint(ticker)

    @property
    def actions(self) -> dict[str, Action]:
        """What all ranks do together."""
        return {"grow": self._begin, "grow_on": self._go_on, "grow_end": self._end}

    async def grow(self, growth: Growth, apply: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Makes a growth ready, and then has its entry applied, which serves it.

        Raises:
            InvalidInput: the table can't grow so.
            Overloaded: there is no memory for it, or a table is growing already.
        """
        return await self._joint.to_its_end(self._grow(growth, apply))

    async def _grow(self, growth: Growth, apply: Callable[[], Awaitable[Outcome]]) -> Outcome:
        seeded: Future[Any] = await self._joint.act("grow", growth)
        try:
            await shielded(seeded)
            while await self._joint.act("grow_on"):
                pass
            return await apply()
        finally:
            await self._joint.act("grow_end")

    def _begin(self, growth: Growth) -> Future[Any]:
        """Joint: makes room for more rows, and begins to seed them."""
        if self._replica.growing:
            raise Overloaded(f"table {growth.table!r} can't grow now, as one is growing; try again once it has")
        check_room(self._replica.engine, growth)
        growing = Growing(self._replica.engine, {growth.table: growth.rows})
        self._replica.growing = growing
        seeded: Future[Any] = Future()
        meet = meeting(self._world, f"growing/{growth.table}/{growth.rows}")

        def seed() -> None:
            try:
                with everywhere(meet, "can't be seeded", "rows"):
                    growing.seed()
            except EmbershardError as error:
                seeded.set_exception(error)
            else:
                seeded.set_result(None)

        threading.Thread(target=seed, name="growing", daemon=True).start()
        return seeded

    def _go_on(self, _: Any) -> bool:
        """Joint: copies some rows."""
        return self._replica.growing is not None and self._replica.growing.copy()

    def _end(self, _: Any) -> None:
        """Joint: whatever has become of it."""
        if self._replica.growing:
            self._replica.growing.drop()
        self._replica.growing = None

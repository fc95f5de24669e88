"""The Python client, sync and asyncio: numpy in, numpy out. Imports numpy, grpcio and protobuf only."""

from embershard.client.aio import AsyncClient
from embershard.client.security import Security
from embershard.client.sync import Client

__all__ = ["AsyncClient", "Client", "Security"]

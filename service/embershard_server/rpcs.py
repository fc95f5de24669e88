"""The table of our RPCs: what each is asked with, what answers it, and who may call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embershard.v1 import embershard_pb2 as pb
from embershard_server.access import Role
from embershard_server.handlers import Rpc

if TYPE_CHECKING:
    from embershard_server.servicers import Servicers

SERVICES = EMBEDDING, ADMIN = "embershard.v1.EmbeddingService", "embershard.v1.AdminService"


def embedding(rpcs: Servicers, check: Callable[[str], None]) -> list[Rpc]:
    """Of EmbeddingService; `check` refuses callers of lookups for whom there is no room."""
    read, update = Role.READ, Role.UPDATE
    return [
        Rpc(name="Describe", request=pb.DescribeRequest, method=rpcs.describe, needs=read),
        Rpc(name="Lookup", request=pb.LookupRequest, method=rpcs.lookup, needs=read, check=check),
        Rpc(name="LookupStream", request=pb.LookupRequest, method=rpcs.lookup, needs=read, streams=True),
        Rpc(name="Update", request=pb.UpdateRequest, method=rpcs.update, needs=update),
        Rpc(name="UpdateStream", request=pb.UpdateRequest, method=rpcs.update, needs=update, streams=True),
    ]


def admin(rpcs: Servicers) -> list[Rpc]:
    """Of AdminService."""
    needs = Role.ADMIN
    return [
        Rpc(name="Snapshot", request=pb.SnapshotRequest, method=rpcs.snapshot, needs=needs),
        Rpc(name="Grow", request=pb.GrowRequest, method=rpcs.grow, needs=needs),
        Rpc(name="Freeze", request=pb.FreezeRequest, method=rpcs.freeze, needs=needs),
        Rpc(name="ListVersions", request=pb.ListVersionsRequest, method=rpcs.list_versions, needs=needs),
        Rpc(name="Load", request=pb.LoadRequest, method=rpcs.load, needs=needs),
        Rpc(name="Activate", request=pb.ActivateRequest, method=rpcs.activate, needs=needs),
        Rpc(name="Rollback", request=pb.RollbackRequest, method=rpcs.rollback, needs=needs),
        Rpc(name="Stage", request=pb.StageRequest, method=rpcs.stage, needs=needs, streams=True),
        Rpc(name="Publish", request=pb.PublishRequest, method=rpcs.publish, needs=needs),
    ]

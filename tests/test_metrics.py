"""What a rank counts is what was asked of it, on both engines, to the last id and byte."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import yaml
from support.metrics import Scrape, told
from support.raw import Raw, float32, int32, int64, lookup, update
from support.service import Service
from support.waiting import eventually

from embershard import Client
from embershard.v1 import embershard_pb2 as pb

CALLS = 16
CONFIG = f"""
[collection]
name = "shop"
seed = 7

[optimizer]
kind = "sgd"
learning_rate = 0.5

[limits]
calls = {CALLS}

[durability]
log = "os"

[[tables]]
name = "user"
rows = 100
dim = 6
features = ["user_id", "friend_id"]
ids = {{ padding = 0 }}

[[tables]]
name = "genre"
rows = 20
dim = 4
pooling = "mean"

[[tables]]
name = "query"
rows = 40
dim = 4
ids = {{ kind = "vocabulary", fallback_rows = 32, admit_after = 2 }}
"""
EVERY = 3
"""Of so many lookups one is examined."""
DEPLOY = Path(__file__).parents[1] / "deploy"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool isn't here: Debian's prometheus")


@pytest.fixture(scope="module", params=[0, 2], ids=["local", "torchrec-2"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    flags = ["--metrics-listen", "127.0.0.1:0", "--provenance-every", str(EVERY)]
    with Service(CONFIG, tmp_path_factory.mktemp("shop"), ranks=request.param, flags=flags) as running:
        yield running


@pytest.fixture
def raw(service: Service) -> Iterator[Raw]:
    with Raw(service.target) as connected:
        yield connected


@pytest.fixture
def more(service: Service) -> Callable[..., dict[tuple[str, ...], float]]:
    """What has been added to a metric since the test began, where anything has; of rank 0 unless another is named."""
    before = {rank: Scrape(url) for rank, url in service.metrics.items()}
    after: dict[int, Scrape] = {}

    def since(name: str, *labels: str, rank: int = 0) -> dict[tuple[str, ...], float]:
        now = after.setdefault(rank, Scrape(service.metrics[rank]))
        old = before[rank].of(name, *labels)
        return {
            key: value - old.get(key, 0) for key, value in now.of(name, *labels).items() if value != old.get(key, 0)
        }

    return since


def refused(ask: Callable[[], Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        ask()
    code: grpc.StatusCode = caught.value.code()
    return code


def test_lookups_are_counted(raw: Raw, more: Any) -> None:
    users = {"feature": "user_id", "ids": int64(1, 2, 0)}
    genres = {"feature": "genre", "ids": int64(1, 2, 3), "lengths": int32(2, 0, 1, 0)}
    requests = [lookup(users, genres), lookup(users), lookup()]
    answers = [raw.call("Lookup", request) for request in requests]
    streamed = [lookup({"feature": "friend_id", "ids": int64(*range(10))})] * 3
    answers_of_stream = raw.stream("LookupStream", streamed)
    assert refused(lambda: raw.call("Lookup", lookup({"feature": "nobody", "ids": int64(1)}))) == (
        grpc.StatusCode.INVALID_ARGUMENT
    )
    unknown = len(lookup({"feature": "nobody", "ids": int64(1)}).SerializeToString())
    assert more("calls_total", "rpc", "code") == {
        ("Lookup", "OK"): 3,
        ("Lookup", "INVALID_ARGUMENT"): 1,
        ("LookupStream", "OK"): 1,
    }
    assert more("ids_total", "rpc", "feature") == {
        ("Lookup", "user_id"): 6,
        ("Lookup", "genre"): 3,
        ("LookupStream", "friend_id"): 30,
    }
    assert more("rows_total", "rpc") == {("Lookup",): 3 + 4 + 3, ("LookupStream",): 30}
    sizes = [len(request.SerializeToString()) for request in requests]
    assert more("received_bytes_total", "rpc") == {
        ("Lookup",): sum(sizes) + unknown,
        ("LookupStream",): 3 * len(streamed[0].SerializeToString()),
    }
    assert more("sent_bytes_total", "rpc") == {
        ("Lookup",): sum(map(len, answers)),
        ("LookupStream",): sum(map(len, answers_of_stream)),
    }
    assert more("call_seconds_count", "rpc") == {("Lookup",): 3, ("LookupStream",): 3}
    assert more("call_wait_seconds_count", "rpc") == {("Lookup",): 3}


def test_stages_of_lookups_are_timed(service: Service, raw: Raw, more: Any) -> None:
    for _ in range(5):
        raw.call("Lookup", lookup({"feature": "user_id", "ids": int64(1)}))
    stages = more("lookup_stage_seconds_count", "stage")
    queued = stages.pop(("queue",), 0)
    assert stages == {("prepare",): 5, ("gather",): 5, ("encode",): 5}
    assert queued == 5 if service.size > 1 else queued <= 5  # alone, a lookup needs no tick unless one is in its way


def test_of_lookups_that_are_examined_it_is_known_where_vectors_come_from(raw: Raw, more: Any) -> None:
    new = {"feature": "query", "keys": ["nobody", "knows", "them"]}
    for _ in range(2 * EVERY):
        raw.call("Lookup", lookup({"feature": "friend_id", "ids": int64(0, 98, 99)}, new))
    assert more("examined_ids_total", "feature", "provenance") == {
        ("friend_id", "padding"): 2,
        ("friend_id", "untrained"): 4,
        ("query", "untrained"): 6,
    }
    assert more("vocabulary_answered_ids_total", "table", "row") == {("query", "fallback"): 3 * 2 * EVERY}


def test_updates_are_counted_as_they_are_logged_and_applied(service: Service, raw: Raw, more: Any) -> None:
    request = update({"feature": "user_id", "ids": int64(1, 2)}, gradients=float32(*range(12)))
    numbered = pb.UpdateRequest()
    numbered.CopyFrom(request)
    numbered.client_id, numbered.sequence = "one", 1
    for sent in (request, numbered, numbered):
        raw.call("Update", sent)
    last = pb.UpdateResponse.FromString(raw.stream("UpdateStream", [request, request])[-1])
    assert more("calls_total", "rpc", "code") == {("Update", "OK"): 3, ("UpdateStream", "OK"): 1}
    # The repeated one names nothing anew.
    assert more("ids_total", "rpc", "feature") == {("Update", "user_id"): 4, ("UpdateStream", "user_id"): 4}
    for rank, target in service.addresses.items():
        with Client(target) as client:
            client.lookup({}, min_version=last.version)  # other ranks may apply a moment after rank 0 has answered
        assert more("entries_total", "kind", rank=rank) == {("update",): 4}
        assert more("update_stage_seconds_count", "stage", rank=rank)[("apply",)] == 4
        assert more("version", rank=rank) == {(): 4}
    assert more("update_stage_seconds_count", "stage")[("queue",)] == 4
    logged = 3 * len(request.SerializeToString()) + len(numbered.SerializeToString())
    assert more("log_appended_bytes_total") == {(): logged}
    assert more("log_failures_total") == {}


def test_each_rank_counts_its_own_calls_and_tells_which_it_is(service: Service, more: Any) -> None:
    with Client(service.addresses[service.size - 1]) as client:
        client.lookup({"user_id": [5]})
    last = service.size - 1
    assert more("ids_total", "rpc", "feature", rank=last) == {("Lookup", "user_id"): 1}
    if last:
        assert more("calls_total", "rpc") == {}
    for rank, url in service.metrics.items():
        about = Scrape(url).of("build_info", "rank", "world_size", "collection", "engine")
        assert about == {(str(rank), str(service.size), "shop", "torchrec" if last else "local"): 1}


def test_vocabularies_and_snapshots_are_told(raw: Raw, service: Service, more: Any) -> None:
    word = {"feature": "query", "keys": ["shoes"]}
    for _ in range(3):
        raw.call("Update", update(word, gradients=float32(1, 1, 1, 1)))
    made = pb.SnapshotResponse.FromString(raw.call("Snapshot", pb.SnapshotRequest()))
    # Its caller may hear of it a moment before.
    eventually(lambda: Scrape(service.metrics[0]).value("snapshot_version") == made.version)
    assert more("vocabulary_admitted_total", "table") == {("query",): 1}
    assert more("vocabulary_ids", "table") == {("query",): 1}
    now = Scrape(service.metrics[0])
    assert now.value("vocabulary_capacity_ids", table="query") == 8
    assert now.value("snapshot_version") == made.version
    assert now.value("snapshot_bytes") == made.bytes
    assert more("snapshot_seconds_count") == {(): 1}
    assert now.value("snapshot_last_success_timestamp_seconds") > now.value("process_start_time_seconds")
    assert now.value("table_rows", table="user") == 100
    assert now.value("table_bytes", table="user", part="rows") > 0


def test_calls_that_are_refused_are_counted_by_the_bound(service: Service, more: Any) -> None:
    own = [("grpc.use_local_subchannel_pool", 1)]  # or both would share one connection
    path, ended = "/embershard.v1.EmbeddingService/LookupStream", threading.Event()

    def asking() -> Iterator[bytes]:
        yield lookup().SerializeToString()
        ended.wait(30)

    with ExitStack() as stack:

        def ask(channel: grpc.Channel) -> None:
            call = channel.stream_stream(path)(asking())
            stack.callback(call.cancel)
            stack.callback(ended.set)
            next(call)

        for streams in (CALLS // 2, CALLS // 4):  # as many as one connection may have, and another one then
            channel = stack.enter_context(grpc.insecure_channel(service.target, options=own))
            for _ in range(streams):
                ask(channel)
        assert refused(lambda: ask(channel)) == grpc.StatusCode.RESOURCE_EXHAUSTED
        now = Scrape(service.metrics[0])
        assert now.value("calls_in_flight") == CALLS // 2 + CALLS // 4
        assert now.value("calls_limit") == CALLS
        assert more("refused_calls_total", "reason") == {("calls",): 1}
        assert more("calls_total", "rpc", "code") == {("LookupStream", "RESOURCE_EXHAUSTED"): 1}


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_metrics(service: Service) -> None:
    for url in service.metrics.values():
        scrape = told(f"{url}/metrics").text
        checked = subprocess.run(["promtool", "check", "metrics"], input=scrape, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_metrics_come_in_the_format_that_is_asked_for(service: Service) -> None:
    answer = told(f"{service.metrics[0]}/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert answer.kind.startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")


def test_dashboards_and_rules_name_metrics_that_there_are(tmp_path: Path) -> None:
    """Of a server with TLS, as some are of its certificate."""
    authority, trusting = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusting)
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    flags = ["--tls-cert", tmp_path / "server.pem", "--tls-key", tmp_path / "server.key"]
    with Service(CONFIG, tmp_path / "state", flags=[*flags, "--metrics-listen", "127.0.0.1:0"]) as secured:
        there = Scrape(secured.metrics[0], context=trusting).names
    dashboard = json.loads((DEPLOY / "grafana" / "embershard.json").read_text())
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    named = {name for query in asked for name in re.findall(r"\b(?:embershard|process)_\w+", query)}
    of_a_gpu = {"embershard_device_memory_used_bytes", "embershard_device_memory_limit_bytes"}
    assert len(named) > 50
    assert named - of_a_gpu <= there

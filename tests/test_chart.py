"""The chart: for each mode it is what helm, kubectl and Kubernetes' own schemas accept, and nonsense is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from support.helm import CHART, Releases, container, environment, helm, of_mode, one, rendered, tool
from support.pages import ROOT

MODES = ["process", "ranks", "hosts"]
"""Each has values in ci/."""
KUBERNETES = ["1.33", "1.37"]
"""Versions whose schemas the manifests are held against."""
SERVES = ("--set=collection.existingConfigMap=shop", "--set=plaintext=true")
HOSTS = (*SERVES, "--set=mode=hosts", "--set=hosts=2", "--set=persistence.accessModes={ReadWriteMany}")
FOUR = (*HOSTS, "--set=ranksPerHost=4")


@pytest.mark.parametrize("mode", MODES)
def test_helm_lint_has_nothing_to_say(mode: str) -> None:
    done = helm("lint", "--strict", "--quiet", CHART, "--values", CHART / "ci" / f"{mode}.yaml")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("mode", MODES)
def test_manifests_are_as_kubernetes_wants_them(mode: str, version: str) -> None:
    built_in = [manifest for manifest in of_mode(mode) if "monitoring.coreos.com" not in manifest["apiVersion"]]
    assert {"StatefulSet", "Service", "NetworkPolicy", "PodDisruptionBudget"} < {one["kind"] for one in built_in}
    for manifest in built_in:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("mode", MODES)
def test_kubectl_reads_the_manifests(mode: str, tmp_path: Path) -> None:
    manifests = of_mode(mode)
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(manifests))
    (tmp_path / "kustomization.yaml").write_text("resources: [all.yaml]\n")
    command = [str(tool("kubectl")), "kustomize", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(list(yaml.safe_load_all(done.stdout))) == len(manifests)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there is nothing to serve"),
        (("--set=collection.existingConfigMap=shop",), "without TLS whoever is on the network reads"),
        ((*SERVES, "--set=collection.toml=x"), "leave one out"),
        ((*SERVES, "--set=tls.existingSecret=x"), "tls.existingSecret and plaintext are both set"),
        ((*SERVES, "--set=tls.clientCertificates=true"), "tls.clientCertificates needs tls.existingSecret"),
        ((*SERVES, "--set=tokens.existingSecret=x"), "tokens would travel in plaintext"),
        ((*SERVES, "--set=hosts=2"), "mode process has one host, and hosts is 2"),
        ((*SERVES, "--set=ranksPerHost=2"), "set mode to ranks"),
        ((*SERVES, "--set=mode=hosts"), "mode hosts needs hosts of 2 or more"),
        ((*HOSTS, "--set=persistence.accessModes={ReadWriteOnce}"), "persistence.accessModes must be [ReadWriteMany]"),
        ((*HOSTS, "--set=gpus=2"), "gpus is 2 and ranksPerHost 1"),
        ((*FOUR, "--set=metricsPort=50054"), "metricsPort 50054 is too near to service.port 50051"),
        ((*FOUR, "--set=metricsPort=50048"), "metricsPort 50048 is too near to service.port 50051"),
        ((*SERVES, "--set=metricsPort=50051"), "metricsPort 50051 is too near to service.port 50051"),
        ((*FOUR, "--set=rendezvousPort=50054"), "rendezvousPort 50054 is one of the ranks' own, which service.port"),
        ((*FOUR, "--set=rendezvousPort=9464"), "rendezvousPort 9464 is one of the ranks' own, which metricsPort"),
        ((*FOUR, "--set=service.port=65533"), "service.port 65533 leaves no room for 4 ranks"),
        ((*SERVES, "--set=mode=cluster"), "mode"),
        ((*SERVES, "--set=replicas=3"), "replicas"),
        ((*SERVES, "--set=persistence.size=large"), "size"),
    ],
)
def test_nonsense_is_refused_with_what_to_do(arguments: Sequence[str], message: str) -> None:
    done = helm("template", "shop", CHART, *arguments)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--set=mode=hosts,hosts=2", "persistence.accessModes must be"),
        ("--set=mode=hosts,hosts=2 --set=persistence.accessModes={ReadWriteMany}", "a claim can't be changed"),
        ("--set=persistence.size=1Gi", "a claim can't be changed"),
    ],
)
def test_an_upgrade_in_the_documentation_is_one_that_would_be_done(flags: str, message: str) -> None:
    tool("helm")
    releases, chart = Releases(), "deploy/helm/embershard"
    releases.take(f"helm install shop {chart} {' '.join(SERVES)}")
    releases.take(f"helm upgrade shop {chart} --reuse-values --set=logLevel=debug")
    with pytest.raises(AssertionError, match=message):
        releases.take(f"helm upgrade shop {chart} --reuse-values {flags}")


@pytest.mark.parametrize(
    "ports",
    [
        (*FOUR, "--set=metricsPort=50055"),
        (*FOUR, "--set=metricsPort=50047"),
        (*FOUR, "--set=rendezvousPort=50055"),
        (*FOUR, "--set=rendezvousPort=50050"),
        (*FOUR, "--set=service.port=65532"),
        (*SERVES, "--set=rendezvousPort=50051"),  # nobody meets there
    ],
)
def test_ports_may_be_next_to_each_other(ports: Sequence[str]) -> None:
    assert rendered(*ports)


@pytest.mark.parametrize(("mode", "hosts", "ranks"), [("process", 1, 1), ("ranks", 1, 4), ("hosts", 3, 2)])
def test_every_rank_of_every_host_has_a_port_of_its_own_that_services_and_policy_know(
    mode: str, hosts: int, ranks: int
) -> None:
    manifests = of_mode(mode)
    assert one(manifests, "StatefulSet")["spec"]["replicas"] == hosts
    ports = {port["name"]: port["containerPort"] for port in container(manifests)["ports"]}
    grpc = {f"grpc-{rank}" if rank else "grpc": 50051 + rank for rank in range(ranks)}
    metrics = {f"metrics-{rank}" if rank else "metrics": 9464 + rank for rank in range(ranks)}
    assert ports == grpc | metrics
    clients = one(manifests, "Service", "embershard")["spec"]
    assert {port["targetPort"]: port["port"] for port in clients["ports"]} == grpc
    policy = one(manifests, "NetworkPolicy")["spec"]
    assert [port["port"] for port in policy["ingress"][0]["ports"]] == list(grpc)
    assert [port["port"] for port in policy["ingress"][1]["ports"]] == list(metrics)
    monitor = one(manifests, "ServiceMonitor")["spec"]
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == list(metrics)
    watched = one(manifests, "Service", "-ranks")["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= watched.items()
    assert watched[monitor["jobLabel"]] == "embershard", "as the job of compose is called"


def test_hosts_meet_at_the_first_of_them_before_any_is_ready() -> None:
    manifests = of_mode("hosts")
    group, headless = one(manifests, "StatefulSet"), one(manifests, "Service", "-ranks")
    name, service = group["metadata"]["name"], headless["metadata"]["name"]
    arguments = container(manifests)["args"]
    assert group["spec"]["serviceName"] == service
    assert group["spec"]["podManagementPolicy"] == "Parallel"
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"]
    assert f"--rdzv-endpoint={name}-0.{service}.ml.svc.cluster.local:29400" in arguments
    assert {"--nnodes=3", "--nproc-per-node=2", "--rdzv-backend=c10d"} < set(arguments)
    assert arguments[-2:] == ["-m", "embershard_server"]
    assert environment(manifests)["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert one(manifests, "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]


def test_one_host_needs_no_meeting_place_and_one_process_no_torchrun() -> None:
    assert "--standalone" in container(of_mode("ranks"))["args"]
    assert container(of_mode("process"))["args"] == ["embershard", "serve"]


@pytest.mark.parametrize("mode", MODES)
def test_pods_may_do_nothing_that_they_need_not(mode: str) -> None:
    manifests = of_mode(mode)
    for pod in (one(manifests, "StatefulSet")["spec"]["template"]["spec"], one(manifests, "Pod")["spec"]):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        assert not pod["enableServiceLinks"]
        assert pod["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert not one(manifests, "ServiceAccount")["automountServiceAccountToken"]


@pytest.mark.parametrize(("mode", "scheme"), [("process", "HTTPS"), ("ranks", "HTTP"), ("hosts", "HTTPS")])
def test_probes_ask_as_the_server_answers_and_wait_as_long_as_a_start_may_take(mode: str, scheme: str) -> None:
    told = container(of_mode(mode, "--set=startSeconds=600"))
    for probe, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        assert told[probe]["httpGet"] == {"path": path, "port": "metrics", "scheme": scheme}
    assert told["startupProbe"]["failureThreshold"] * told["startupProbe"]["periodSeconds"] == 600
    # torchrun starts ranks again in the same container, for which there is no second start probe.
    patience = told["livenessProbe"]["failureThreshold"] * told["livenessProbe"]["periodSeconds"]
    assert patience == (30 if mode == "process" else 600)


def test_secrets_are_files_of_secrets_that_exist() -> None:
    manifests = of_mode("hosts")
    told = environment(manifests)
    assert told["EMBERSHARD_TLS_CERT"] == "/etc/embershard/tls/tls.crt"
    assert told["EMBERSHARD_TLS_CLIENT_CA"] == "/etc/embershard/tls/ca.crt"
    assert told["EMBERSHARD_TOKENS"] == "/etc/embershard/tokens/tokens.toml"
    assert not any("TOKEN" in name for name in told if name != "EMBERSHARD_TOKENS")
    assert "EMBERSHARD_PLAINTEXT" not in told
    assert environment(of_mode("ranks"))["EMBERSHARD_PLAINTEXT"] == "1"
    assert not any(manifest["kind"] == "Secret" for manifest in manifests)


def test_ranks_may_reach_each_other_and_dns_alone() -> None:
    egress = one(of_mode("hosts"), "NetworkPolicy")["spec"]["egress"]
    ranks = one(of_mode("hosts"), "StatefulSet")["spec"]["selector"]["matchLabels"]
    assert egress == [
        {"to": [{"podSelector": {"matchLabels": ranks}}]},
        {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
    ]


def test_torchrun_lets_ranks_write_a_last_snapshot_within_the_grace_of_the_pod() -> None:
    manifests = of_mode("hosts", "--set=terminationGracePeriodSeconds=300")
    assert one(manifests, "StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 300
    assert "--shutdown-timeout=290" in container(manifests)["args"]


def test_gpus_are_asked_for_and_their_image_taken() -> None:
    told = container(of_mode("ranks"))
    assert told["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": 4}
    assert told["image"] == "registry.example/embershard:0.1.0-gpu"
    digest = f"sha256:{'0' * 64}"
    assert container(of_mode("ranks", f"--set=image.digest={digest}"))["image"].endswith(f"embershard@{digest}")


def test_pods_ask_for_what_their_ranks_need_unless_told_otherwise() -> None:
    assert container(rendered(*FOUR))["resources"] == {
        "requests": {"cpu": "8", "memory": "16Gi"},
        "limits": {"memory": "16Gi"},
    }
    given = container(rendered(*FOUR, "--set=resources.requests.memory=6Gi"))["resources"]
    assert given == {"requests": {"memory": "6Gi"}}
    with_gpus = container(rendered(*FOUR, "--set=gpus=4"))["resources"]
    assert with_gpus["limits"] == {"memory": "16Gi", "nvidia.com/gpu": 4}


@pytest.mark.parametrize(
    ("flags", "told"),
    [((), True), (("--set=test.enabled=false",), False), (("--set=test.tokenSecret=",), False)],
)
def test_notes_name_helm_test_where_there_is_one(flags: Sequence[str], told: bool) -> None:
    values = CHART / "ci" / "process.yaml"
    done = helm("install", "shop", CHART, "--dry-run=client", "--values", values, *flags)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert ("\n  helm --namespace default test shop\n" in notes) == told
    assert "pods --selector" in notes


def test_the_test_pod_has_what_it_asks_with_or_there_is_none() -> None:
    pod = one(of_mode("hosts"), "Pod")["spec"]["containers"][0]
    assert pod["args"] == ["embershard", "describe", "--target", "shop-embershard.ml.svc:50051"]
    assert {variable["name"] for variable in pod["env"]} >= {
        "EMBERSHARD_CA",
        "EMBERSHARD_TOKEN_FILE",
        "EMBERSHARD_CLIENT_CERT",
        "EMBERSHARD_CLIENT_KEY",
        "EMBERSHARD_SERVER_NAME",
    }
    for without in ("test.tokenSecret", "test.clientSecret"):
        assert not [found for found in of_mode("hosts", f"--set={without}=") if found["kind"] == "Pod"]


def test_the_collection_is_the_file_that_was_given(tmp_path: Path) -> None:
    sample = ROOT / "deploy" / "movielens.toml"
    manifests = rendered(f"--set-file=collection.toml={sample}", "--set=plaintext=true")
    assert one(manifests, "ConfigMap")["data"]["collection.toml"].strip() == sample.read_text().strip()


def test_the_alert_rules_are_those_of_deploy() -> None:
    rules = ROOT / "deploy" / "prometheus" / "alerts.yml"
    copied = CHART / "files" / "alerts.yml"
    assert copied.read_bytes() == rules.read_bytes(), "run `make generate`"
    manifest = one(of_mode("process", "--set=prometheusRule.enabled=true"), "PrometheusRule")
    assert manifest["spec"] == yaml.safe_load(rules.read_text())


def test_alerts_link_to_where_the_runbook_is() -> None:
    base = "https://wiki.example/runbook"
    flags = ("--set=prometheusRule.enabled=true", f"--set=prometheusRule.runbookBase={base}")
    groups = one(of_mode("process", *flags), "PrometheusRule")["spec"]["groups"]
    links = {rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert f"{base}#disk-full" in links
    assert all(link.startswith(f"{base}#") for link in links)


def test_the_schema_knows_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
    for name, value in values.items():
        if "properties" in schema["properties"][name]:
            assert set(value) == set(schema["properties"][name]["properties"])

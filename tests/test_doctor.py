"""What `embershard doctor` finds in installations that are told to it, and how it tries things out."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from embershard import doctor
from embershard.doctor import Attempt, Finding

NO_GPU = Attempt(worked=True, told="")
H200 = Attempt(worked=True, told="NVIDIA H200, 580.10")
GOOD = doctor.TOGETHER[-1]
CLIENT = {"python": "3.11.9", "embershard": "0.1.0", "numpy": "2.4.6", "grpcio": "1.85.3", "protobuf": "7.36.2"}
SERVER = CLIENT | {name: "1.0" for name in doctor.SERVER if name not in ("torch", "fbgemm-gpu-cpu")}
CPU = SERVER | {"torch": f"{GOOD['torch']}+cpu", "fbgemm-gpu-cpu": GOOD["fbgemm"]}
GPU = SERVER | {"torch": GOOD["torch"], "fbgemm-gpu": GOOD["fbgemm"], "torchrec": GOOD["torchrec"]}
SHARDED_CPU = CPU | {"torchrec": GOOD["torchrec"]}
TORCHREC_ON_CPU = (
    "pip install --no-deps torchrec==1.8.0\npip install tensordict torchmetrics==1.0.3 tqdm pyre-extensions"
)


def found(installed: dict[str, str], gpus: Attempt = NO_GPU) -> dict[str, Finding]:
    findings = doctor.examine(installed, gpus)
    by_name = {finding.name: finding for finding in findings}
    assert len(by_name) == len(findings)
    assert all(bool(finding.remedy) == (finding.status != "ok") for finding in findings)
    return by_name


def tried(installed: dict[str, str], gpus: Attempt = NO_GPU, **ends: Attempt) -> dict[str, Finding]:
    """Findings where trying FBGEMM or TorchRec ends as told, and well if nothing is told."""

    def attempt(code: str) -> Attempt:
        which = "torchrec" if "torchrec" in code else "fbgemm"
        return ends.get(which, Attempt(worked=True, told="cpu"))

    return {finding.name: finding for finding in doctor.try_out(installed, gpus, attempt)}


@pytest.mark.parametrize(("installed", "gpus"), [(SHARDED_CPU, NO_GPU), (GPU, H200)])
def test_a_complete_installation_of_versions_that_belong_together_is_fine(
    installed: dict[str, str], gpus: Attempt
) -> None:
    findings = found(installed, gpus)
    assert doctor.worst(list(findings.values())) == "ok"
    assert {"server", "versions", "backend"} <= findings.keys()
    assert findings["torch"].found == installed["torch"]


def test_a_client_alone_is_fine_and_learns_which_extra_brings_the_server() -> None:
    findings = found(CLIENT)
    assert doctor.worst(list(findings.values())) == "ok"
    assert set(findings) == {*CLIENT, "GPU", "server"}
    assert "pip install 'embershard[cpu]'" in findings["server"].found
    assert "embershard[gpu]" in findings["server"].found
    assert tried(CLIENT) == {}


def test_a_client_beside_somebody_s_torch_is_a_client() -> None:
    findings = found(CLIENT | {"torch": "2.1.0", "pydantic": "2.13.0"})
    assert doctor.worst(list(findings.values())) == "ok"


def test_the_known_versions_are_those_that_the_extras_pin() -> None:
    pins = dict(
        re.findall(r"^(torch|fbgemm-gpu|torchrec)==([\d.]+)", "\n".join(metadata.requires("embershard") or ()), re.M)
    )
    assert {name.removesuffix("-gpu"): version for name, version in pins.items()} == GOOD


def test_every_package_of_the_server_extra_is_one_that_the_doctor_knows() -> None:
    extra = [line for line in metadata.requires("embershard") or () if 'extra == "server"' in line]
    assert {re.split(r"[<>=;~! ]", line)[0] for line in extra} < doctor.SERVER.keys()


def test_what_the_server_lacks_is_a_problem_with_the_extra_that_brings_it() -> None:
    without = {name: version for name, version in CPU.items() if name not in ("xxhash", "torch")}
    finding = found(without)["server"]
    assert (finding.status, finding.found) == ("problem", "needs also torch, xxhash")
    assert finding.remedy == "pip install 'embershard[cpu]'"
    assert found({name: version for name, version in GPU.items() if name != "psutil"}, H200)["server"].remedy == (
        "pip install 'embershard[gpu]'"
    )


def test_versions_that_do_not_belong_together_are_a_problem_with_the_ones_that_do() -> None:
    finding = found(SHARDED_CPU | {"torch": "2.14.0+cpu", "torchrec": "1.9.0"})["versions"]
    assert finding.status == "problem"
    assert "torch 2.14.0, fbgemm-gpu-cpu 1.8.0, torchrec 1.9.0" in finding.found
    assert finding.remedy == ("pip install torch==2.13.0 fbgemm-gpu-cpu==1.8.0\npip install --no-deps torchrec==1.8.0")
    finding = found(GPU | {"fbgemm-gpu": "1.9.0"}, H200)["versions"]
    assert finding.remedy.startswith("pip install torch==2.13.0 fbgemm-gpu==1.8.0\n")


def test_both_fbgemms_at_once_are_a_problem_that_ends_with_the_one_that_fits() -> None:
    both = CPU | {"fbgemm-gpu": GOOD["fbgemm"]}
    for gpus, extra in ((NO_GPU, "cpu"), (H200, "gpu")):
        finding = found(both, gpus)["backend"]
        assert finding.status == "problem"
        assert "fbgemm-gpu-cpu and fbgemm-gpu install the same module" in finding.found
        uninstall, install = finding.remedy.splitlines()
        assert uninstall == "pip uninstall --yes torch fbgemm-gpu-cpu fbgemm-gpu"
        assert install == f"pip install 'embershard[{extra}]'"


def test_a_gpu_that_a_cpu_backend_leaves_unused_is_a_warning() -> None:
    findings = found(SHARDED_CPU, H200)
    assert findings["GPU"].found == "NVIDIA H200, 580.10"
    assert findings["backend"].status == "warning"
    assert findings["backend"].remedy.endswith("pip install 'embershard[gpu]'")


def test_a_gpu_backend_without_a_gpu_is_a_warning() -> None:
    findings = found(GPU, NO_GPU)
    assert findings["GPU"].found == "no NVIDIA GPU is seen"
    assert findings["backend"].status == "warning"
    assert findings["backend"].remedy.endswith("pip install 'embershard[cpu]'")


def test_a_gpu_backend_beside_a_torch_for_cpus_is_a_problem() -> None:
    finding = found(GPU | {"torch": "2.13.0+cpu"}, H200)["backend"]
    assert finding.status == "problem"
    assert "torch 2.13.0+cpu is for CPUs" in finding.found


def test_a_driver_that_fails_is_a_warning() -> None:
    finding = found(CPU, Attempt(worked=False, told="couldn't communicate with the NVIDIA driver"))["GPU"]
    assert finding.status == "warning"
    assert "couldn't communicate" in finding.found


def test_torchrec_is_missed_only_for_the_sharded_engine_and_its_awkward_install_is_told() -> None:
    finding = found(CPU)["sharded engine"]
    assert (finding.status, finding.remedy) == ("warning", TORCHREC_ON_CPU)
    finding = found({name: version for name, version in GPU.items() if name != "torchrec"}, H200)["sharded engine"]
    assert (finding.status, finding.remedy) == ("warning", "pip install 'embershard[gpu]'")


def test_engines_that_work_are_fine() -> None:
    findings = tried(SHARDED_CPU)
    assert {name: finding.status for name, finding in findings.items()} == {
        "local engine": "ok",
        "sharded engine": "ok",
    }
    assert findings["local engine"].found == "FBGEMM gathers rows on cpu"
    assert tried(CPU).keys() == {"local engine"}


def test_an_engine_that_fails_is_a_problem_with_its_reason_and_remedy() -> None:
    crashed, broken = Attempt(worked=False, told="crashed (SIGSEGV)"), Attempt(worked=False, told="ImportError: no")
    findings = tried(SHARDED_CPU, fbgemm=crashed, torchrec=broken)
    assert doctor.worst(list(findings.values())) == "problem"
    assert findings["local engine"].found == "FBGEMM doesn't work: crashed (SIGSEGV)"
    assert findings["local engine"].remedy.endswith("pip install 'embershard[cpu]'")
    assert findings["sharded engine"].found == "TorchRec can't be imported: ImportError: no"
    assert findings["sharded engine"].remedy == TORCHREC_ON_CPU


def test_a_torch_that_does_not_use_the_gpu_is_a_warning() -> None:
    assert tried(GPU, H200)["local engine"].status == "warning"
    assert tried(GPU, H200, fbgemm=Attempt(worked=True, told="cuda"))["local engine"].status == "ok"


def test_nothing_is_tried_without_torch() -> None:
    assert tried({name: version for name, version in CPU.items() if name != "torch"}) == {}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os.abort()", "crashed (SIGABRT)"),
        ("raise SystemExit(3)", "exit status 3"),
        ("import embershard_of_tomorrow", "ModuleNotFoundError: No module named 'embershard_of_tomorrow'"),
        ("raise OSError('first line\\nsecond line')", "OSError: first line"),
    ],
)
def test_what_fails_in_its_own_process_is_told_and_hurts_nobody(code: str, told: str) -> None:
    assert doctor.run_apart(code) == Attempt(worked=False, told=told)


def test_what_does_not_end_is_ended() -> None:
    end = doctor.run_apart("import threading; threading.Event().wait()", timeout_s=0.5)
    assert end == Attempt(worked=False, told="no end within 0.5 s")


def test_fbgemm_gathers_rows_here() -> None:
    assert doctor.gather() in ("cpu", "cuda")


def test_versions_are_those_of_the_installed_distributions() -> None:
    installed = doctor.installed_versions()
    assert installed["numpy"] == metadata.version("numpy")
    assert installed["embershard"] == metadata.version("embershard")

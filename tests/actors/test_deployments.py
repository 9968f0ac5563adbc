"""The SLURM script and the Kubernetes manifest of docs/cluster: what can be seen without either."""

import os
import re
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HERE = ROOT / "docs" / "cluster"

SETTINGS = re.compile(r"\b(RAY_(?:free|worker|health|USAGE)\w+|GLIBC_TUNABLES)=(\S+?)(?=[\s;]|$)")
"""What is exported before `ray start`, besides the token."""


@pytest.fixture(scope="module")
def manifests():
    """What kuberay.yaml holds, by kind."""
    return {tree["kind"]: tree for tree in yaml.safe_load_all((HERE / "kuberay.yaml").read_text())}


@pytest.fixture(scope="module")
def groups(manifests):
    """The pods of the cluster: the head's and the workers'."""
    cluster = manifests["RayJob"]["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


@pytest.fixture(scope="module")
def settings():
    """The settings of Ray in cluster.yaml."""
    tree = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    return dict(SETTINGS.findall(tree["head_start_ray_commands"][1]))


def test_the_slurm_script_asks_for_a_token_that_it_shows_nobody(settings):
    script = (HERE / "slurm.sh").read_text()
    assert "RAY_AUTH_MODE=token" in script
    assert not re.search(r"RAY_AUTH_TOKEN=", script)
    assert "--include-dashboard=false" in script
    assert dict(SETTINGS.findall(script)) == settings


def test_the_slurm_script_queues_again_when_its_time_is_up_before_the_machines_are_there(tmp_path):
    programs = {
        "srun": "exit 0",
        "hostname": "echo 127.0.0.1",
        "python": 'kill -TERM "$SCRIPT"; echo 0',
        "scontrol": f'echo "$@" > {tmp_path}/queued',
        "rayfed-ssl": f"touch {tmp_path}/begun",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    own = {"RUN": str(tmp_path / "run"), "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "1", "USER": "me"}
    script = ["bash", "-c", f"export SCRIPT=$$; exec bash {HERE / 'slurm.sh'} fedema"]
    ended = subprocess.run(script, env=own | job, timeout=60, check=False)
    assert (tmp_path / "queued").read_text() == "requeue 7\n"
    assert ended.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "begun").exists()


def test_the_kubernetes_manifest_has_what_kuberay_requires_and_its_network_policy_covers_every_pod(manifests, groups):
    assert set(manifests) == {"PersistentVolumeClaim", "NetworkPolicy", "RayJob"}
    job = manifests["RayJob"]
    assert job["apiVersion"] == "ray.io/v1"
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert all({"rayStartParams", "template"} <= set(group) for group in groups)
    assert all(isinstance(value, str) for group in groups for value in group["rayStartParams"].values())
    labels = manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
    pods = [*(group["template"] for group in groups), job["spec"]["submitterPodTemplate"]]
    assert all(labels.items() <= pod["metadata"]["labels"].items() for pod in pods)
    assert set(cluster["workerGroupSpecs"][0]) >= {"groupName", "replicas", "minReplicas", "maxReplicas"}


def test_pods_ask_for_a_token_have_ray_s_settings_and_room_for_its_store(manifests, groups, settings):
    assert manifests["RayJob"]["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {entry["name"]: entry["value"] for entry in container["env"]} == settings
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        assert volumes[mounts["/shared"]]["persistentVolumeClaim"]["claimName"] == "rayfed-ssl"
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["resources"]["limits"] == container["resources"]["requests"]


def test_what_is_mounted_is_what_is_installed():
    mounts = yaml.safe_load((ROOT / "cluster.yaml").read_text())["file_mounts"]
    mounted = {local for local in mounts.values() if not local.startswith("~")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert mounted == {"pyproject.toml", project["project"]["readme"], *packages}


def test_ray_and_torch_have_one_version_everywhere(manifests):
    version = manifests["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"]
    files = [path.read_text() for path in (HERE / "Dockerfile", ROOT / "cluster.yaml")]
    assert f"rayproject/ray:{version}-" in files[0]
    assert all(f"=={version}" in text for text in files)
    assert all(re.findall(r"torch==[\d.]+", text) for text in files)
    assert len({version for text in files for version in re.findall(r"torch==([\d.]+)", text)}) == 1


def test_both_deployments_resume_a_run_that_exists(manifests):
    entrypoint = manifests["RayJob"]["spec"]["entrypoint"]
    subprocess.run(["bash", "-n", "-c", entrypoint], timeout=60, check=True)
    for script in ((HERE / "slurm.sh").read_text(), entrypoint):
        assert re.search(r"if \[ -e \S+/run.json", script)

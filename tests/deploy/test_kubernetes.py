"""deploy/kubernetes: overlays as kustomize builds them, and whether their parts fit together."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from allroads.cli.services import mesh_services
from allroads.config import load_settings

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "gpu")
API_VERSIONS = ("1.33", "1.37")
"""The oldest in which sidecars are stable, and the newest whose schemas there are."""
Manifest = dict[str, Any]


@cache
def built(overlay: str) -> list[Manifest]:
    """An overlay's manifests."""
    for program in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(program[0]):
            command = [*program, str(KUBERNETES / "overlays" / overlay)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            return list(yaml.safe_load_all(output))
    pytest.skip("neither kustomize nor kubectl is installed")


def of_kind(overlay: str, kind: str) -> list[Manifest]:
    return [manifest for manifest in built(overlay) if manifest["kind"] == kind]


def pod_of(deployment: Manifest) -> Manifest:
    pod: Manifest = deployment["spec"]["template"]["spec"]
    return pod


def containers_of(pod: Manifest) -> list[Manifest]:
    """Those that stay: sidecars first, as they start."""
    return [*(c for c in pod.get("initContainers", ()) if c.get("restartPolicy") == "Always"), *pod["containers"]]


def containers(overlay: str) -> Iterator[tuple[Manifest, Manifest]]:
    """Pods with each of their containers."""
    for deployment in of_kind(overlay, "Deployment"):
        pod = pod_of(deployment)
        yield from ((pod, container) for container in containers_of(pod))


def mesh_file(overlay: str, directory: Path) -> Path:
    [config_map] = of_kind(overlay, "ConfigMap")
    path = directory / "mesh.yaml"
    path.write_text(config_map["data"]["mesh.yaml"])
    return path


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("version", API_VERSIONS)
def test_manifests_are_what_the_api_takes(overlay: str, version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate (110 MB of schemas)")
    for manifest in built(overlay):
        schemas.validate(manifest, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_pods_and_ports(overlay: str) -> None:
    pods = [deployment["spec"]["template"] for deployment in of_kind(overlay, "Deployment")]

    def found(selector: dict[str, str]) -> list[Manifest]:
        return [pod["spec"] for pod in pods if selector.items() <= pod["metadata"]["labels"].items()]

    for kind in ("PodDisruptionBudget", "Deployment"):
        for manifest in of_kind(overlay, kind):
            assert len(found(manifest["spec"]["selector"]["matchLabels"])) == 1, manifest["metadata"]
    for service in of_kind(overlay, "Service"):
        [pod] = found(service["spec"]["selector"])
        ports = {port["name"] for container in containers_of(pod) for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for policy in of_kind(overlay, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"].get("matchLabels", {})
        assert len(found(selector)) == (1 if selector else len(pods))
    [autoscaler] = of_kind(overlay, "HorizontalPodAutoscaler")
    target = autoscaler["spec"]["scaleTargetRef"]["name"]
    assert target in {deployment["metadata"]["name"] for deployment in of_kind(overlay, "Deployment")}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_that_is_mounted_is_there(overlay: str) -> None:
    made = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in built(overlay)}
    for pod, container in containers(overlay):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in made


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_container_serves_where_it_is_probed_and_called(
    overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mesh_file(overlay, tmp_path)
    told = load_settings(path)
    for _, container in containers(overlay):
        name = container["name"]
        assert container["args"] == ["serve", name, "--config", "/etc/allroads/mesh.yaml"]
        with monkeypatch.context() as changed:
            for variable in container.get("env", ()):
                if variable["name"].startswith("ALLROADS_"):
                    changed.setenv(variable["name"], variable["value"])
            own = load_settings(path)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        if name == "gateway":
            assert own.gateway.host == "0.0.0.0"
            assert list(ports.values()) == [own.gateway.port, own.gateway.grpc_port]
            assert [probe["httpGet"]["path"] for probe in probes] == ["/health", "/ready", "/health"]
            continue
        port = ports[name]
        assert own.internal[name].address == f"0.0.0.0:{port}"
        assert told.internal[name].address.endswith(f":{port}")
        [service] = [service for service in mesh_services(own, path) if service.name == name]
        assert [probe["grpc"]["port"] for probe in probes] == [port] * 3
        # Alive is who answers at all; only readiness is about what a service needs besides.
        assert [probe["grpc"].get("service") for probe in probes] == [service.health_name, service.health_name, None]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_time_to_end_well(overlay: str, tmp_path: Path) -> None:
    grace_s = load_settings(mesh_file(overlay, tmp_path)).grace_s
    for deployment in of_kind(overlay, "Deployment"):
        pod = pod_of(deployment)
        # Sidecars are told to stop one after the other, and a gateway first waits until nobody sends anything.
        assert pod["terminationGracePeriodSeconds"] > grace_s * len(containers_of(pod)) + 10


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_meet_the_restricted_standard(overlay: str) -> None:
    for deployment in of_kind(overlay, "Deployment"):
        pod = pod_of(deployment)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_home_starts_from_the_called_to_the_caller(overlay: str) -> None:
    [home] = [manifest for manifest in of_kind(overlay, "Deployment") if manifest["metadata"]["name"] == "home"]
    pod = pod_of(home)
    assert [container["name"] for container in containers_of(pod)] == ["router", "slm", "gateway"]
    assert [container.get("restartPolicy") for container in pod["initContainers"][-2:]] == ["Always"] * 2


def test_kernels_are_copied_with_their_times(tmp_path: Path) -> None:
    [command] = {
        tuple(pod_of(deployment)["initContainers"][0]["command"]) for deployment in of_kind("gpu", "Deployment")
    }
    source, target = tmp_path / "source", tmp_path / "target"
    (source / ".cache" / "deep").mkdir(parents=True)
    target.mkdir()
    (source / ".cache" / "deep" / "kernel.so").write_text("code")
    os.utime(source / ".cache" / "deep" / "kernel.so", (1000, 1000))
    places = {"/var/cache/allroads": str(source), "/kernels": str(target)}
    subprocess.run([places.get(word, word) for word in command], check=True)
    assert (target / ".cache" / "deep" / "kernel.so").stat().st_mtime == 1000
    # An image without any is none to fail for.
    shutil.rmtree(source / ".cache")
    subprocess.run([places.get(word, word) for word in command], check=True)


def test_kernels_of_the_image_are_put_where_services_look_for_them_before_they_start() -> None:
    for deployment in of_kind("gpu", "Deployment"):
        pod = pod_of(deployment)
        first = pod["initContainers"][0]
        assert (first["name"], first["command"][:2]) == ("kernels", ["find", "/var/cache/allroads"])
        [volume] = [mount["name"] for mount in first["volumeMounts"] if mount["mountPath"] == "/kernels"]
        for container in containers_of(pod):
            places = {v["name"]: v["value"] for v in container.get("env", ()) if not v["name"].startswith("ALLROADS_")}
            if container["name"] == "gateway":
                continue
            [place] = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == volume]
            assert places["FLASHINFER_WORKSPACE_BASE"] == places["TMPDIR"] == place
            assert places["CUDA_CACHE_PATH"].startswith(place)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_name_servers_are_within_reach_and_not_taken_for_pods_of_ours(overlay: str) -> None:
    [policy] = [manifest for manifest in of_kind(overlay, "NetworkPolicy") if manifest["metadata"]["name"] == "home"]
    selectors = [peer.get("podSelector") for rule in policy["spec"]["egress"] for peer in rule["to"]]
    assert {"matchLabels": {"k8s-app": "kube-dns"}} in selectors

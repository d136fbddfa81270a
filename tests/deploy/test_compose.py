"""deploy/compose.yaml and what goes over it, as far as can be told without Docker."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from allroads.cli.services import mesh_services
from allroads.config import MeshSettings, load_settings, service_names

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MESH = DEPLOY / "mesh.yaml"
OURS = service_names(load_settings(MESH))
MOUNT = "/etc/allroads/mesh.yaml"


def overlay(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text())
    return content


def settings_of(service: str, monkeypatch: pytest.MonkeyPatch) -> MeshSettings:
    """What a container reads: the file, and its own environment over it."""
    for key, value in SERVICES[service].get("environment", {}).items():
        if key.startswith("ALLROADS_"):
            monkeypatch.setenv(key, value)
    return load_settings(MESH)


def test_every_service_of_the_mesh_is_a_container() -> None:
    assert set(OURS) == {name for name, service in SERVICES.items() if "profiles" not in service}


@pytest.mark.parametrize("name", OURS)
def test_a_container_runs_its_service_and_asks_for_its_health(name: str) -> None:
    assert SERVICES[name]["command"] == ["serve", name, "--config", MOUNT]
    assert SERVICES[name]["healthcheck"]["test"] == ["CMD", "allroads", "health", name, "--config", MOUNT]


@pytest.mark.parametrize("name", OURS)
def test_a_service_listens_where_its_callers_look_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = load_settings(MESH)
    own = settings_of(name, monkeypatch)
    if name == "gateway":
        assert [port.rpartition(":")[2] for port in SERVICES[name]["ports"]] == [
            str(own.gateway.port),
            str(own.gateway.grpc_port),
        ]
    else:
        host, _, port = told.internal[name].address.rpartition(":")
        assert (host, own.internal[name].address) == (name, f"0.0.0.0:{port}")
    assert {service.name for service in mesh_services(own, MESH) if service.address} == set(OURS)


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_can_fill_a_disk_or_the_memory_or_stay_down(name: str) -> None:
    service = SERVICES[name]
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service["deploy"]["resources"]["limits"]["memory"]
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_no_rights_to_lose(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert int(service["stop_grace_period"].removesuffix("s")) > load_settings(MESH).grace_s + 10


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))


@pytest.mark.parametrize("name", SERVICES)
def test_files_that_are_mounted_are_there(name: str) -> None:
    sources = [volume.split(":")[0] for volume in SERVICES[name].get("volumes", ())]
    assert [source for source in sources if source.startswith("./") and not (DEPLOY / source).exists()] == []


@pytest.mark.parametrize("name", ["compose.shared.yaml", "compose.gpu.yaml", "compose.mps.yaml", "compose.keys.yaml"])
def test_an_overlay_is_about_services_that_there_are(name: str) -> None:
    changed = set(overlay(name)["services"])
    assert changed - {"namespaces", "mps"} <= set(OURS)


def test_services_that_share_memory_share_all_namespaces_that_handles_need() -> None:
    services = overlay("compose.shared.yaml")["services"]
    assert services["namespaces"]["ipc"] == "shareable"
    for name in set(OURS) - {"gateway"}:
        assert (services[name]["ipc"], services[name]["pid"]) == ("service:namespaces", "service:namespaces")
        assert "namespaces" in services[name]["depends_on"]


def over(below: Any, above: Any) -> Any:
    """As compose puts one file over another: mappings key by key, lists end to end, all else as above."""
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {key: over(below[key], value) if key in below else value for key, value in above.items()}
    return below + above if isinstance(below, list) and isinstance(above, list) else above


def on_gpus(*further: str) -> dict[str, dict[str, Any]]:
    """All services by their names, with GPUs."""
    files = [overlay(name) for name in ("compose.yaml", "compose.shared.yaml", "compose.gpu.yaml", *further)]
    for service in (service for file in files for service in file["services"].values()):
        # A list of services to wait for is a mapping without conditions.
        if isinstance(waits_for := service.get("depends_on"), list):
            service["depends_on"] = {name: {"condition": "service_started"} for name in waits_for}
    services: dict[str, dict[str, Any]] = reduce(over, files)["services"]
    return services


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    environment: dict[str, str] = service["environment"]
    return environment


@pytest.mark.parametrize("name", sorted(set(OURS) - {"gateway"}))
def test_services_on_gpus_can_open_each_others_memory(name: str) -> None:
    service = on_gpus()[name]
    assert (service["ipc"], service["pid"]) == ("service:namespaces", "service:namespaces")
    (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert not any("expandable" in str(value) for value in environment_of(service).values())
    namespaces = on_gpus()["namespaces"]
    assert namespaces["ipc"] == "shareable"
    assert namespaces["shm_size"].endswith(":-2g}")


@pytest.mark.parametrize("name", sorted(set(OURS) - {"gateway"}))
def test_services_on_gpus_have_where_to_compile_and_time_to_start_and_to_stop(name: str) -> None:
    service, alone = on_gpus()[name], SERVICES[name]
    (kernels,) = [volume for volume in service["volumes"] if volume.startswith("kernels:")]
    places = ("FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH", "TMPDIR")
    assert all(environment_of(service)[place].startswith(kernels.split(":")[1]) for place in places)
    assert environment_of(alone).items() <= environment_of(service).items()
    assert service["healthcheck"]["test"] == alone["healthcheck"]["test"]
    assert int(service["healthcheck"]["start_period"].removesuffix("s")) > 600
    assert int(service["stop_grace_period"].removesuffix("s")) > load_settings(MESH).grace_s + 10
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]


def test_one_mps_daemon_serves_all_that_use_gpus() -> None:
    services = on_gpus("compose.mps.yaml")
    mps = services["mps"]
    directory = environment_of(mps)["CUDA_MPS_PIPE_DIRECTORY"]
    volume = f"mps:{directory}"
    for name in set(OURS) - {"gateway"}:
        client = services[name]
        assert environment_of(client)["CUDA_MPS_PIPE_DIRECTORY"] == directory
        assert volume in client["volumes"]
        assert client["depends_on"]["mps"] == {"condition": "service_healthy"}
        shared = ("ipc", "pid", "read_only", "cap_drop", "security_opt")
        assert [client[key] for key in shared] == [mps[key] for key in shared]
    assert volume in mps["volumes"]
    # A daemon serves the user that it runs as; the volume is that user's, who is the image's.
    options = overlay("compose.mps.yaml")["volumes"]["mps"]["driver_opts"]
    assert "USER 10001:10001" in (DEPLOY / "Dockerfile").read_text()
    assert options == {"type": "tmpfs", "device": "tmpfs", "o": "uid=10001,gid=10001,mode=0700"}


def test_the_image_holds_what_is_needed_and_no_more() -> None:
    ignored = (DEPLOY.parent / ".dockerignore").read_text().split("\n")
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        word
        for line in (DEPLOY / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    assert let_in == copied
    assert all((DEPLOY.parent / name).exists() for name in let_in)

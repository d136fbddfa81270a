"""deploy/compose.yaml and what goes over it, as far as can be told without Docker."""

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


@pytest.mark.parametrize("name", ["compose.shared.yaml", "compose.gpu.yaml", "compose.keys.yaml"])
def test_an_overlay_is_about_services_that_there_are(name: str) -> None:
    changed = set(overlay(name)["services"])
    assert changed - {"namespaces"} <= set(OURS)


def test_services_that_share_memory_share_all_namespaces_that_handles_need() -> None:
    services = overlay("compose.shared.yaml")["services"]
    assert services["namespaces"]["ipc"] == "shareable"
    for name in set(OURS) - {"gateway"}:
        assert (services[name]["ipc"], services[name]["pid"]) == ("service:namespaces", "service:namespaces")
        assert "namespaces" in services[name]["depends_on"]


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

"""Which of a service's processes this one is, and what is refused before any of them starts."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from allroads.cli.seats import check_ranks, seat_of
from allroads.cli.services import mesh_services
from allroads.config import MeshSettings
from allroads.engine.place import Place
from allroads.errors import StartupError


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)


def _launch(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    """As torchrun does."""
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "RANK": str(rank), "WORLD_SIZE": str(size)}.items():
        monkeypatch.setenv(name, value)


def _settings(**llm: object) -> MeshSettings:
    settings = MeshSettings()
    return settings.with_internal({"llm": {"tensor_parallel": 2, **llm}})


def test_the_first_process_starts_the_others_unless_torchrun_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = _settings()
    assert seat_of("slm", settings, None, None) is None
    first = seat_of("llm", settings, None, None)
    assert first is not None
    assert (first.place, first.starts_others, first.speaker) == (Place(0, 2), True, "")
    second = seat_of("llm", settings, 1, tmp_path)
    assert second is not None
    assert (second.place, second.starts_others, second.speaker) == (Place(1, 2, tmp_path), False, ".1")
    _launch(monkeypatch, 0, 2)
    launched = seat_of("llm", settings, None, None)
    assert launched is not None
    assert (launched.place, launched.starts_others) == (Place(0, 2), False)


@pytest.mark.parametrize(("service", "size", "key"), [("llm", 3, "llm"), ("slm", 2, "slm")])
def test_another_number_of_processes_is_refused(
    service: str, size: int, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _launch(monkeypatch, 0, size)
    with pytest.raises(StartupError, match=f"torchrun has started {size} processes of {service}") as caught:
        seat_of(service, _settings(), None, None)
    assert caught.value.field == f"{key}.tensor_parallel"


@pytest.mark.parametrize(
    ("llm", "single_process", "words"),
    [
        ({}, True, "leave --single-process away"),
        ({"lends_kv": True}, False, "unset lends_kv"),
        ({"adopts_from": "unix:/run/other.sock"}, False, "unset lends_kv"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_it_starts(
    llm: Mapping[str, object], single_process: bool, words: str
) -> None:
    check_ranks(MeshSettings(), single_process=True)
    with pytest.raises(StartupError, match=words) as caught:
        check_ranks(_settings(**llm), single_process=single_process)
    assert caught.value.field == "llm.tensor_parallel"


def test_processes_of_one_model_get_a_core_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("allroads.cli.services.usable_cores", lambda: list(range(8)))
    settings = _settings().with_addresses(tmp_path)
    commands = {service.name: service.command for service in mesh_services(settings, tmp_path / "mesh.yaml")}
    assert commands["llm"].count("--core") == 2
    assert commands["slm"].count("--core") == 1

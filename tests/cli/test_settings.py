"""What a mesh is made of: tiers and their order, names, embedded paths, who wins, and the scorers that come along."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from allroads import embedded
from allroads.cli.options import resolve_settings
from allroads.config import (
    MAX_MIDDLE_TIERS,
    MeshSettings,
    TierSettings,
    embedded_path,
    load_settings,
    save_settings,
    service_names,
)
from allroads.errors import StartupError

ROOT = Path(__file__).parents[2]


def middle(*names: str) -> dict[str, Any]:
    return {"middle": {name: {"path": f"/models/{name}"} for name in names}}


@pytest.fixture
def embedded_scorers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Something embedded: a pair, a router, a scorer, and another whose training has not ended."""
    root = tmp_path / "embedded"
    for name in ("slm", "llm", "router", "citer", "co-llm", "mlm.part", "__pycache__"):
        (root / name).mkdir(parents=True)
    (root / "citer" / "manifest.json").touch()
    (root / "__init__.py").touch()
    monkeypatch.setattr(embedded, "_root", lambda: root)
    return {"citer": root / "citer"}


def test_a_mesh_of_two() -> None:
    settings = load_settings()
    assert list(settings.tiers) == ["slm", "llm"]
    assert settings.middle == {}
    assert service_names(settings) == ("llm", "router", "slm", "gateway")


def test_tiers_are_numbered_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text("middle: {zlm: {path: /z}, alm: {path: /a, catch_up: eager, num_kv_tokens: auto}}\n")
    settings = load_settings(path)
    assert list(settings.tiers) == ["slm", "zlm", "alm", "llm"]
    assert list(settings.internal) == ["slm", "zlm", "alm", "llm", "router"]
    assert service_names(settings) == ("llm", "alm", "zlm", "router", "slm", "gateway")
    assert settings.tiers["zlm"] == settings.tier_settings("zlm") == TierSettings(path=Path("/z"))
    assert settings.tier_settings("alm").catch_up == "eager"
    assert settings.tier_settings("llm") is settings.llm
    save_settings(settings, path)
    assert list(load_settings(path).tiers) == ["slm", "zlm", "alm", "llm"]
    assert load_settings(path) == settings


@pytest.mark.parametrize("name", ["slm", "mlm", "router"])
def test_only_larger_tiers_are_visited(name: str) -> None:
    with pytest.raises(StartupError, match=f"no larger tier is named '{name}'; there are xlm, llm"):
        load_settings(None, middle("xlm")).tier_settings(name)


@pytest.mark.parametrize("name", ["m", "mlm-2", "a" * 31, "r2r"])
def test_names_that_a_tier_may_have(name: str) -> None:
    assert list(load_settings(None, middle(name)).middle) == [name]


@pytest.mark.parametrize("name", ["", "Mlm", "2lm", "-lm", "m_lm", "m.lm", "m/lm", "mlm\n", "ü", "a" * 32])
def test_names_that_it_may_not_have(name: str) -> None:
    with pytest.raises(StartupError, match="1 to 31 characters") as caught:
        load_settings(None, middle(name))
    assert caught.value.field == f"middle.{name}"


@pytest.mark.parametrize("name", ["slm", "llm", "router", "gateway", "mesh"])
@pytest.mark.parametrize("key", ["middle", "router.scorers"])
def test_names_that_are_taken(name: str, key: str) -> None:
    overrides = middle(name) if key == "middle" else {"router": {"scorers": {name: "/scorer"}}}
    with pytest.raises(StartupError, match="that name is taken, as are slm, llm, router, gateway, mesh") as caught:
        load_settings(None, overrides)
    assert caught.value.field == f"{key}.{name}"


def test_there_is_a_limit_to_tiers() -> None:
    names = [f"m{number}" for number in range(MAX_MIDDLE_TIERS + 1)]
    assert len(load_settings(None, middle(*names[:-1])).tiers) == MAX_MIDDLE_TIERS + 2
    with pytest.raises(StartupError, match=r"middle: .*at most 6 items") as caught:
        load_settings(None, middle(*names))
    assert caught.value.field == "middle"


def test_the_environment_wins_for_middle_tiers_and_scorers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text(
        "middle: {mlm: {path: /old, num_threads: 3}, nlm: {path: /n}}\nrouter: {scorers: {citer: /c, co-llm: /o}}"
    )
    monkeypatch.setenv("ALLROADS_MIDDLE__MLM__PATH", "/new")
    monkeypatch.setenv("ALLROADS_MIDDLE__MLM__NUM_KV_TOKENS", "64")
    monkeypatch.setenv("ALLROADS_MIDDLE__ZLM__PATH", "embedded:slm")
    monkeypatch.setenv("ALLROADS_ROUTER__SCORERS__CITER", "/d")
    settings = load_settings(path)
    assert list(settings.tiers) == ["slm", "mlm", "nlm", "zlm", "llm"]
    mlm = settings.middle["mlm"]
    assert (mlm.path, mlm.num_threads, mlm.num_kv_tokens) == (Path("/new"), 3, 64)
    assert settings.middle["zlm"].path == embedded_path("slm")
    assert settings.router.scorers == {"citer": Path("/d"), "co-llm": Path("/o")}


def test_a_variable_may_hold_several_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLROADS_MIDDLE", json.dumps(middle("z-lm", "a-lm")["middle"]))
    monkeypatch.setenv("ALLROADS_ROUTER__SCORERS", '{"co-llm": "/o"}')
    settings = load_settings()
    assert list(settings.tiers) == ["slm", "z-lm", "a-lm", "llm"]
    assert settings.router.scorers == {"co-llm": Path("/o")}


def test_a_variable_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLROADS_MIDDLE", "mlm")
    with pytest.raises(StartupError, match=r"middle.*JSON"):
        load_settings()


def test_options_win_over_variables_and_these_over_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLROADS_SLM__POLICY", "entropy")
    monkeypatch.setenv("ALLROADS_SLM__NUM_THREADS", "2")
    settings = load_settings(None, {"slm": {"policy": "slm", "max_ahead": 3}}, {"slm": {"policy": "llm"}})
    assert (settings.slm.policy, settings.slm.num_threads, settings.slm.max_ahead) == ("llm", 2, 3)
    with pytest.raises(StartupError, match=r"gateway\.port"):
        load_settings(None, None, {"gateway": {"port": 70_000}})


def test_an_option_that_was_not_given_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLROADS_SLM__POLICY", "entropy")
    settings = resolve_settings(None, slm={"path": Path("embedded:llm"), "policy": None})
    assert (settings.slm.path, settings.slm.policy) == (embedded_path("llm"), "entropy")


def test_paths_may_name_what_is_embedded() -> None:
    settings = load_settings(
        None,
        {
            "slm": {"path": "embedded:slm"},
            "llm": {"path": "embedded:llm"},
            "middle": {"mlm": {"path": "embedded:llm"}},
            "router": {"path": "embedded:router", "scorers": {"citer": "embedded:slm"}},
        },
    )
    for name in ("slm", "llm"):
        assert settings.tiers[name].path == embedded_path(name)
    assert settings.middle["mlm"].path == embedded_path("llm")
    assert settings.router.path == embedded_path("router")
    assert settings.router.scorers == {"citer": embedded_path("slm")}
    assert load_settings(None, {"slm": {"path": "./embedded:slm"}}).slm.path == Path("embedded:slm")


@pytest.mark.usefixtures("embedded_scorers")
@pytest.mark.parametrize("name", ["", "mlm", "mlm.part", "../slm", "__init__.py", "__pycache__"])
@pytest.mark.parametrize(
    ("key", "overrides"),
    [
        ("slm.path", lambda path: {"slm": {"path": path}}),
        ("middle.mlm.path", lambda path: {"middle": {"mlm": {"path": path}}}),
        ("router.path", lambda path: {"router": {"path": path}}),
        ("router.scorers.x", lambda path: {"router": {"scorers": {"x": path}}}),
    ],
)
def test_what_is_not_embedded_is_told_with_what_is(
    key: str, overrides: Callable[[str], dict[str, Any]], name: str
) -> None:
    with pytest.raises(StartupError) as caught:
        load_settings(None, overrides(f"embedded:{name}"))
    assert caught.value.field == key
    assert caught.value.message.endswith(f"nothing is embedded as {name!r}; there are citer, co-llm, llm, router, slm")


def test_the_embedded_scorers_come_with_the_embedded_router(
    embedded_scorers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings().router.scorers == MeshSettings().router.scorers == embedded_scorers
    unrelated: dict[str, Any] = {"slm": {"policy": "slm"}, "llm": {"path": "/l"}, "router": {"num_threads": 2}}
    assert load_settings(None, unrelated).router.scorers == embedded_scorers
    monkeypatch.setenv("ALLROADS_SLM__NUM_THREADS", "2")
    assert load_settings().router.scorers == embedded_scorers


@pytest.mark.usefixtures("embedded_scorers")
@pytest.mark.parametrize(
    "given",
    [{"slm": {"path": "/s"}}, {"router": {"path": "/r"}}, {"router": {"scorers": {}}}],
)
def test_they_stay_away_where_another_model_or_router_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, dict[str, Any]]
) -> None:
    assert load_settings(None, given).router.scorers == {}
    assert load_settings(None, None, given).router.scorers == {}
    path = tmp_path / "mesh.yaml"
    path.write_text(yaml.safe_dump(given))
    assert load_settings(path).router.scorers == {}
    for part, values in given.items():
        for key, value in values.items():
            monkeypatch.setenv(f"ALLROADS_{part}__{key}".upper(), value or "{}")
    assert load_settings().router.scorers == {}


def test_each_internal_service_gets_an_address(tmp_path: Path) -> None:
    overrides = middle("mlm", "nlm") | {"llm": {"address": "127.0.0.1:7001"}}
    overrides["middle"]["nlm"]["address"] = "127.0.0.1:7002"
    settings = load_settings(None, overrides).with_addresses(tmp_path)
    assert {name: part.address for name, part in settings.internal.items()} == {
        "slm": f"unix:{tmp_path}/slm.sock",
        "mlm": f"unix:{tmp_path}/mlm.sock",
        "nlm": "127.0.0.1:7002",
        "llm": "127.0.0.1:7001",
        "router": f"unix:{tmp_path}/router.sock",
    }
    assert settings.middle["mlm"].address == settings.tiers["mlm"].address


def test_the_embedded_models_can_be_served_as_three() -> None:
    settings = load_settings(ROOT / "configs" / "embedded-three.yaml")
    assert {name: tier.path for name, tier in settings.tiers.items()} == {
        name: embedded_path(name) for name in ("slm", "mlm", "llm")
    }
    assert settings.slm.policy == "me"
    assert settings.router == load_settings().router

"""The file of API keys, the ring that knows them, and the command that makes them."""

import asyncio
import os
import stat
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest
import yaml
from allroads.cli.main import app
from allroads.errors import InvalidArgument, StartupError, Unauthenticated
from allroads.gateway.admission.client_key import sent_key
from allroads.gateway.admission.refusal import Refusal
from allroads.gateway.security import key_ring
from allroads.gateway.security.key_changes import add_key, revoke_key
from allroads.gateway.security.key_file import PREFIX, KeyRecord, digest_of, new_salt, read_keys, today
from allroads.gateway.security.key_limits import KeyLimits
from allroads.gateway.security.key_ring import KeyRing
from typer.testing import CliRunner

DAY = timedelta(days=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def change(path: Path, **fields: object) -> None:
    """Other values for the first key of a file, as nobody could give them by the command."""
    content = yaml.safe_load(path.read_text())
    content["keys"][0].update(fields)
    path.write_text(yaml.safe_dump(content))


def test_a_key_is_kept_as_a_hash_alone(path: Path) -> None:
    key = add_key(path, "alice", requests_per_minute=60, max_running=4, expires=today())
    assert key.startswith(PREFIX)
    assert len(key) == len(PREFIX) + 43
    assert key.removeprefix(PREFIX) not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = read_keys(path)
    (record,) = content.keys
    assert record.digest == digest_of(key, content.salt)
    assert (record.name, record.requests_per_minute, record.max_running) == ("alice", 60, 4)
    assert (record.created, record.expires) == (today(), today())
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.yaml"]


def test_two_files_keep_one_key_differently() -> None:
    assert digest_of("k", new_salt()) != digest_of("k", new_salt())


def test_names_are_taken_until_revoked(path: Path) -> None:
    first = add_key(path, "alice")
    add_key(path, "bob")
    with pytest.raises(InvalidArgument, match="named 'alice' already"):
        add_key(path, "alice")
    revoke_key(path, "alice")
    with pytest.raises(InvalidArgument, match="no key is named 'alice'"):
        revoke_key(path, "alice")
    assert add_key(path, "alice") != first
    assert [record.name for record in read_keys(path).keys] == ["bob", "alice"]


@pytest.mark.parametrize("name", ["", "a b", "-a", "a\n", "é", "a" * 64])
def test_a_name_is_short_and_plain(path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="a name has 1 to 63") as error:
        add_key(path, name)
    assert error.value.field == "name"
    assert not path.exists()


def test_limits_and_days_are_checked(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is over"):
        add_key(path, "alice", expires=today() - DAY)
    with pytest.raises(InvalidArgument, match="max_running"):
        add_key(path, "alice", max_running=0)
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    add_key(path, "alice")
    path.chmod(mode)
    for use in (read_keys, KeyRing, lambda path: add_key(path, "bob"), lambda path: revoke_key(path, "alice")):
        with pytest.raises(StartupError, match="chmod 600") as error:
            use(path)
        assert error.value.field == "gateway.keys_path"


@pytest.mark.parametrize("content", ["", "[]", "salt: x", "{", "\x00", "keys: []", "salt: {a: *b}"])
def test_a_file_that_is_no_file_of_keys(path: Path, content: str) -> None:
    path.touch(mode=0o600)
    path.write_text(content)
    with pytest.raises(StartupError, match=r"keys\.yaml"):
        read_keys(path)


def test_a_file_that_is_not_there(path: Path) -> None:
    with pytest.raises(StartupError, match="allroads keys new NAME --file"):
        read_keys(path)
    with pytest.raises(StartupError, match="make the directory first"):
        add_key(path.parent / "none" / "keys.yaml", "alice")


def test_an_error_never_quotes_the_file(path: Path) -> None:
    key = add_key(path, "alice")
    for fields in ({"digest": key}, {"max_running": key}, {"expires": key}, {"name": f"{key} {key} {key}"}):
        before = path.read_text()
        change(path, **fields)
        with pytest.raises(StartupError) as error:
            read_keys(path)
        assert key not in error.value.message
        path.write_text(before)


def test_what_is_sent_is_looked_up(path: Path) -> None:
    key, other = add_key(path, "alice"), add_key(path, "bob")
    ring = KeyRing(path)
    assert ring.name(f"Bearer {key}", None) == ring.name(f"bearer   {key} ", other) == "alice"
    assert ring.name(None, other) == ring.name("Basic abc", other) == ring.name("", other) == "bob"
    for authorization, api_key in ((None, None), ("", ""), ("Bearer", None), (key, None), ("Basic abc", None)):
        with pytest.raises(Unauthenticated, match="an API key is needed"):
            ring.name(authorization, api_key)
    for wrong in (key[:-1], key + "x", key.upper(), "ar-", "\udcff", "ключ", "x" * 100_000):
        with pytest.raises(Unauthenticated, match="not known") as error:
            ring.name(f"Bearer {wrong}", None)
        assert wrong not in error.value.message


def test_a_key_ends_with_its_last_day(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = today()
    key = add_key(path, "alice", expires=last)
    ring = KeyRing(path)
    assert ring.name(f"Bearer {key}", None) == "alice"
    monkeypatch.setattr(key_ring, "today", lambda: last + DAY)
    with pytest.raises(Unauthenticated, match=f"valid until {last}"):
        ring.name(f"Bearer {key}", None)


def test_sent_key() -> None:
    assert sent_key("Bearer a b", "c") == "a b"
    assert sent_key("Bearer ", "c") == "c"


class Watched(KeyRing):
    """Tells when the file was looked at and taken, or not."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.looked = asyncio.Event()

    async def _reread(self, stamp: tuple[int, int, int] | None) -> None:
        await super()._reread(stamp)
        self.looked.set()


async def test_a_changed_file_is_taken_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "_POLL_S", 0.001)
    alice = add_key(path, "alice")
    ring = Watched(path)
    task = asyncio.create_task(ring.run())

    async def after(action: Callable[[], object]) -> object:
        ring.looked.clear()
        result = action()
        await ring.looked.wait()
        return result

    try:
        bob = await after(lambda: add_key(path, "bob"))
        assert ring.name(f"Bearer {bob}", None) == "bob"
        await after(lambda: revoke_key(path, "alice"))
        with pytest.raises(Unauthenticated):
            ring.name(f"Bearer {alice}", None)
        # What cannot be used changes nothing.
        await after(lambda: path.chmod(0o666))
        await after(lambda: path.write_text("{"))
        await after(path.unlink)
        assert ring.name(f"Bearer {bob}", None) == "bob"
        carol = await after(lambda: add_key(path, "carol"))
        assert ring.name(f"Bearer {carol}", None) == "carol"
        assert len(ring) == 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def record_of(**fields: int) -> KeyRecord:
    return KeyRecord.model_validate({"name": "alice", "digest": "0" * 64, "created": date(2026, 1, 1), **fields})


def limits_of(**fields: int) -> KeyLimits:
    return KeyLimits({"alice": record_of(**fields)}.get)


def test_answers_at_once() -> None:
    limits = limits_of(max_running=2)
    limits.check("alice", 2)
    limits.open("alice")
    limits.open("alice")
    with pytest.raises(Refusal, match="2 answers open at once, and has 2") as error:
        limits.check("alice", 1)
    assert error.value.reason == "key_open"
    limits.close("alice")
    limits.check("alice", 1)
    limits.close("alice")
    assert limits.num_open("alice") == 0
    with pytest.raises(InvalidArgument, match="asks for 3"):
        limits.check("alice", 3)
    limits.check("nobody", 1000)


def test_starts_in_a_minute() -> None:
    limits = limits_of(requests_per_minute=2)
    for _ in range(2):
        limits.check("alice", 1)
        limits.start("alice")
    with pytest.raises(Refusal, match="2 requests in a minute") as error:
        limits.check("alice", 1)
    assert error.value.retry_after_s is not None
    assert 0 < error.value.retry_after_s <= 60


def test_a_limit_that_is_lifted_holds_no_more() -> None:
    records = {"alice": record_of(requests_per_minute=1)}
    limits = KeyLimits(records.get)
    limits.start("alice")
    with pytest.raises(Refusal):
        limits.check("alice", 1)
    records.clear()
    limits.check("alice", 1)


def test_the_command(path: Path) -> None:
    run = CliRunner().invoke
    made = run(app, ["keys", "new", "alice", "--file", str(path), "--max-running", "3", "--expires", "2099-12-31"])
    assert made.exit_code == 0, made.output
    key = made.stdout.strip()
    assert KeyRing(path).name(f"Bearer {key}", None) == "alice"
    listed = run(app, ["keys", "list", "--file", str(path)])
    assert "alice" in listed.stdout
    assert "2099-12-31" in listed.stdout
    assert run(app, ["keys", "revoke", "alice", "--file", str(path)]).exit_code == 0
    assert read_keys(path).keys == ()
    assert run(app, ["keys", "new", "alice"]).exit_code == 2
    assert run(app, ["keys", "new", "alice", "--file", str(path), "--expires", "soon"]).exit_code == 2


def test_the_file_of_a_process_that_died_while_writing_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_key(path, "alice")
    before = path.read_bytes()

    def die(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(StartupError, match="No space left"):
        add_key(path, "bob")
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.yaml"]

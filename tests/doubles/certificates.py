"""An authority of our own and certificates that it signs, made by openssl."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from allroads.config import MeshTlsSettings, TlsSettings

_CONFIG = "[req]\ndistinguished_name = dn\n[dn]\n"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Authority:
    """Signs certificates, all in one directory."""

    directory: Path
    name: str = "ca"

    @property
    def certificate(self) -> Path:
        return self.directory / f"{self.name}.pem"

    def sign(self, name: str, *hosts: str) -> TlsSettings:
        """A certificate for a server of these names: `DNS:slm`, `IP:127.0.0.1`."""
        made = TlsSettings(certificate=self.directory / f"{name}.pem", key=self.directory / f"{name}.key")
        extensions = ["basicConstraints=critical,CA:FALSE", f"subjectAltName={','.join(hosts)}"]
        _openssl(self.directory, name, "-CA", str(self.certificate), "-CAkey", str(self._key), extensions=extensions)
        return made

    def mesh(self, name: str, *hosts: str, server_name: str = "") -> MeshTlsSettings:
        """What a service of a mesh shows and asks for."""
        own = self.sign(name, *hosts)
        return MeshTlsSettings(certificate=own.certificate, key=own.key, ca=self.certificate, server_name=server_name)

    @property
    def _key(self) -> Path:
        return self.directory / f"{self.name}.key"


def make_authority(directory: Path, name: str = "ca") -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    extensions = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"]
    _openssl(directory, name, extensions=extensions)
    return Authority(directory, name)


def _openssl(directory: Path, name: str, *arguments: str, extensions: list[str]) -> None:
    config = directory / "openssl.cnf"
    config.write_text(_CONFIG)
    extended = [part for extension in extensions for part in ("-addext", extension)]
    files = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-days", "2")
    command = ["openssl", "req", "-x509", "-config", str(config), *_KEY, *files, *arguments, *extended]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)

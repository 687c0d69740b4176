"""Certificates for tests, made by the openssl program: an authority, and who it vouches for."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Somebody who vouches."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.pem = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", f"/CN={name}", "-keyout", str(self._key)),
            *("-out", str(self.pem)),
        )

    def issue(self, name: str, *others: str) -> Certificate:
        """Return a certificate for a common name, and other names as ``DNS:x`` or ``IP:x``."""
        stem = f"{self.pem.stem}-{name.replace('/', '-')}"
        made = Certificate(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        request = self._folder / f"{stem}.csr"
        self._openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", str(made.key), "-out", str(request)),
        )
        extensions = self._folder / f"{stem}.ext"
        extensions.write_text(f"subjectAltName={','.join(others)}\n" if others else "")
        self._openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.pem), "-CAkey", str(self._key)),
            *("-set_serial", str(len(list(self._folder.iterdir()))), "-days", "2"),
            *("-extfile", str(extensions), "-out", str(made.certificate)),
        )
        made.key.chmod(0o600)
        return made

    @staticmethod
    def _openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)

# SPDX-License-Identifier: Apache-2.0
"""Certificates of a test's own, made by openssl(1): an authority, and who it vouches for."""

import pathlib
import subprocess


def _openssl(*args, cwd):
    subprocess.run(["openssl", *args], cwd=cwd, check=True, capture_output=True, timeout=60)


class Authority:
    """Everything is a PEM file in `directory`."""

    def __init__(self, directory):
        self.dir = pathlib.Path(directory)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.ca, self.key = self.dir / "ca.pem", self.dir / "ca-key.pem"
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                 "-subj", "/CN=test authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
                 "-keyout", str(self.key), "-out", str(self.ca), cwd=self.dir)

    def issue(self, name, *names, days=2, usage="serverAuth"):
        """A certificate for these names ("IP:127.0.0.1", "DNS:x"); (certificate, key)."""
        cert, key, request, ext = (self.dir / f"{name}{end}" for end in (".pem", "-key.pem", ".csr", ".ext"))
        # As strict verifiers want them, Python's from 3.13 on among these.
        ext.write_text(f"extendedKeyUsage={usage}\nbasicConstraints=critical,CA:FALSE\n"
                       "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid:always\n"
                       + (f"subjectAltName={','.join(names)}\n" if names else ""))
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
                 "-keyout", str(key), "-out", str(request), cwd=self.dir)
        _openssl("x509", "-req", "-in", str(request), "-CA", str(self.ca), "-CAkey", str(self.key), "-CAcreateserial",
                 "-days", str(days), "-extfile", str(ext), "-out", str(cert), cwd=self.dir)
        return cert, key

    def environment(self, client=None):
        env = {"BOX_ENGINE_TLS_CA": str(self.ca)}
        if client is not None:
            env.update(BOX_ENGINE_TLS_CERT=str(client[0]), BOX_ENGINE_TLS_KEY=str(client[1]))
        return env

"""
A private certificate authority, made known to Java.

Python, pip and curl read ``SSL_CERT_FILE``; Java has a list of its own. The file's
certificates are written as a trust store that Java reads.
"""

import re
import warnings
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12Certificate,
    serialize_java_truststore,
)

# A trust store needs a password although all that it holds is public.
_PASSWORD: Final = "changeit"  # noqa: S105 - Java's own word for it
_BLOCK: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)


def java_flags(certificates: Path, store: Path) -> list[str]:
    """Write the trust store and return the flags that make Java read it."""
    found = [PKCS12Certificate(c, None) for c in _read(certificates.read_bytes())]
    encryption = BestAvailableEncryption(_PASSWORD.encode())
    store.write_bytes(serialize_java_truststore(found, encryption))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
    ]


def _read(text: bytes) -> list[x509.Certificate]:
    certificates = []
    with warnings.catch_warnings():
        # Some old authorities break rules that a later release will insist on.
        warnings.simplefilter("ignore")
        for block in _BLOCK.findall(text):
            try:
                certificates.append(x509.load_pem_x509_certificate(block))
            except ValueError:
                continue
    return certificates

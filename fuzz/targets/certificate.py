"""Any certificate expires when OpenSSL says; any bytes do at some time, or are a `ValueError`.

An input is a certificate in DER form.
"""

from __future__ import annotations

import ssl
import warnings

from narwhal.net.certificates import expiry

_FIRST, _LAST = -62135596800.0, 253402300799.0
"""The years 1 to 9999, which a certificate can name."""


def check(data: bytes) -> None:
    pem = ssl.DER_cert_to_PEM_cert(data).encode()
    try:
        found = expiry(pem)
    except ValueError:
        found = None
    assert found is None or _FIRST <= found <= _LAST
    said = _said_by_openssl(data)
    assert said is None or said == found, "they disagree"


def _said_by_openssl(data: bytes) -> float | None:
    """When it expires; `None` if it is no certificate, or not one that OpenSSL tells about."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of serial numbers below zero and the like
            (told,) = context.get_ca_certs()  # those of authorities alone
        return float(ssl.cert_time_to_seconds(str(told["notAfter"])))
    except (ssl.SSLError, ValueError):
        return None

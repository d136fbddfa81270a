"""Whom a request is from, without keeping the key that says so."""

import hashlib
import secrets

_DIGEST_BYTES = 16
_BEARER = "bearer"


class ClientKeys:
    """Turns API keys into names that mean nothing outside this process and cannot be turned back.

    Nothing is checked: whoever sends another key is another client. Only for sharing the room that there is.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(_DIGEST_BYTES)

    def name(self, authorization: str | None, api_key: str | None) -> str:
        """The client's name, "" where no key came.

        Args:
            authorization: the header `Authorization`, of which `Bearer KEY` is understood.
            api_key: the header `x-api-key`, for clients that send no other.
        """
        if not (key := sent_key(authorization, api_key)):
            return ""
        data = key.encode(errors="surrogatepass")
        return hashlib.blake2b(data, key=self._secret, digest_size=_DIGEST_BYTES).hexdigest()


def sent_key(authorization: str | None, api_key: str | None) -> str:
    """The key in the header `Authorization`, where that is `Bearer KEY`, else in `x-api-key`; "" for none."""
    scheme, _, key = (authorization or "").strip().partition(" ")
    key = key.strip() if scheme.lower() == _BEARER else ""
    return key or (api_key or "").strip()

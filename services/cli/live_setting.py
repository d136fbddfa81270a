"""What a gateway that runs has measured of its mesh."""

from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from ..throughput.setting import Setting

_CONNECT_TIMEOUT_S, _TIMEOUT_S = 5.0, 15.0


def fetch_setting(url: str) -> "Setting":
    """The live profile of a gateway, by `GET /v1/admission`.

    Raises:
        Unavailable: it cannot be reached, does not tell, or does not know its profile yet.
        InvalidArgument: what it tells is no setting.
    """
    from ..throughput.setting_json import setting_from_json  # noqa: PLC0415

    view = _get(f"{url.rstrip('/').removesuffix('/v1')}/v1/admission")
    if not isinstance(view, dict) or "setting" not in view:
        raise InvalidArgument(f"{url} does not answer like a gateway of allroads; check --url", field="url")
    if view["setting"] is None:
        raise Unavailable(f"the gateway at {url} has measured nothing yet; send it requests first", field="url")
    return setting_from_json(view["setting"])


def _get(url: str) -> Any:
    import httpx  # noqa: PLC0415 (slow to import)

    try:
        timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        response = httpx.get(url, timeout=timeout, trust_env=False)
        response.raise_for_status()
        return response.json()
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InvalidArgument(f"--url: {url} is no address: {error}", field="url") from error
    except httpx.HTTPStatusError as error:
        raise Unavailable(
            f"{url} answers {error.response.status_code}; is it a gateway of allroads?", field="url"
        ) from error
    except httpx.HTTPError as error:
        raise Unavailable(f"cannot reach {url}: {error}", field="url") from error
    except ValueError as error:
        raise InvalidArgument(f"{url} does not answer with JSON; check --url", field="url") from error

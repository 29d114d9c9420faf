"""What ``tidegate run`` sets for the agent so that its requests go through the gateway. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from . import portfile

OPENAI: Final = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
ANTHROPIC: Final = "ANTHROPIC_BASE_URL"


def gateway_urls(choice: str | None, session: str, environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables to set, and what to tell the person who starts the agent; empty when there is no gateway.

    Args:
        choice: the option ``--gateway``: a URL, ``none``, or None for the gateway that runs on this machine.
        session: id of the session.
        environment: as it is. Without ``choice`` an address in it that is not the gateway's upstream stays: the agent
            was sent there on purpose.

    Raises:
        ValueError: ``choice`` is no URL.
    """
    if choice == "none":
        return {}, ""
    if choice is not None:
        from .urls import UrlError, base_url

        try:
            return _variables(base_url(choice), session), ""
        except UrlError as error:
            raise ValueError(f"--gateway: {error}") from None
    found = portfile.running()
    if found is None:
        return {}, ""
    wanted = _variables(found.url, session)
    kept = sorted(name for name in wanted if not _replaceable(environment.get(name), found))
    said = f"requests of the agent go through the gateway at {found.url} to {found.upstream}"
    if kept:
        said += f"; {', '.join(kept)} is set to another address and stays (--gateway {found.url} changes it)"
    if len(kept) == len(wanted):
        said = f"{', '.join(kept)} are set and stay; --gateway {found.url} sends requests through the gateway"
    return {name: url for name, url in wanted.items() if name not in kept}, said


def _variables(url: str, session: str) -> dict[str, str]:
    base = f"{url}/session/{session}"
    return {**dict.fromkeys(OPENAI, f"{base}/v1"), ANTHROPIC: base}


def _replaceable(value: str | None, gateway: portfile.Running) -> bool:
    """Whether an address is none, the gateway's or the engine's behind it."""
    if not value:
        return True
    from .urls import UrlError, base_url, same_server

    try:
        url = base_url(value)
    except UrlError:
        return False
    return same_server(url, gateway.url) or same_server(url, gateway.upstream)

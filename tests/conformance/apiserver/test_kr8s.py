"""How kr8s 0.20.15 treats servers that behave, and servers that don't.

These findings come from trials.  Tests cover the behaviour that a reflector relies on:

* `await kr8s.asyncio.api(...)` reads the credentials and asks `/version/` (with the slash), each time it is called,
  also when it returns the instance that it has kept.  So it raises when the server isn't there yet, and then leaves an
  open session that no code can reach.  `api = Api(bypass_factory=True, ...)` and then `await api` does the same with an
  instance to close.  It warns (UserWarning) of versions after 1.35 and of versions that it can't parse.  Discovery is
  asked only for kinds given by name.
* `call_api(version="v1", url="services")` and `call_api(version="discovery.k8s.io/v1", url="endpointslices")` make the
  URLs.  With a `base` of /api/v1 the version must be "", as both are joined.  A namespace of None is all namespaces.
* Without `timeout=` nothing ever times out, not even connecting.  A timeout of reading is `kr8s.APITimeoutError`, also
  in the middle of a stream.  All other failures of a connection are httpx's own: `ConnectError` (also for a certificate
  that isn't trusted: nothing is loaded again for it), `ReadError` (reset), `RemoteProtocolError` (cut short).  A stream
  that ends in the middle of a line, but cleanly, raises nothing: the rest comes as a last line.
* A status of 400 and more is `kr8s.ServerError`, with `.response`.  `.status` is the Status as a dict up to 499, a text
  if there was no JSON, and only the number as a text from 500.  JSON that is no Status raises KeyError or TypeError.
  Redirects are followed.  Nothing is tried again, but for 401 and 403: each is asked three times more at once, and each
  time the credentials are read again and **the session is replaced, which cuts all other streams** (ReadError).
* With `raise_for_status=False` none of that happens: look at `response.status_code`, `await api.auth.reauthenticate()`,
  and send the new token as a header of the request, which wins over the session's: the other streams go on.
  `reauthenticate` alone doesn't change the session's header.
* Tokens are read when they are refused, never before.  A newline at the end of the file is sent as it is, and refused
  by h11 (LocalProtocolError).  certificate-authority-data is written to a new file in TMPDIR each time the credentials
  are read, and never removed: certificates in files of their own avoid that.
* `response.aiter_lines()` splits like `str.splitlines`: U+0085 and U+2028, which JSON needn't escape, cut an event in
  pieces.  Split `aiter_bytes()` at newlines instead, which is as fast.
* Raising httpx's own errors inside `async with api.call_api(...)` confuses it: HTTPStatusError of 401 or 403 becomes
  "RuntimeError: generator didn't stop after athrow()".  Leaving the block, or cancelling, closes a stream at once.
* Only `await api._session.aclose()` closes the session.  Without it there are ResourceWarnings.
* Bodies come compressed unless `headers={"accept-encoding": "identity"}`.  HTTPS_PROXY and similar variables count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import kr8s
import kr8s.asyncio
import pytest
from nftproxy_conformance.apiserver import ApiServer, faults

from tests.conformance.apiserver.clients import SERVICES, Object, bearer, event_of, service
from tests.support import objects
from tests.support.waiting import PATIENCE


@asynccontextmanager
async def connected(server: ApiServer, config: Path, **options: Any) -> AsyncIterator[kr8s.asyncio.Api]:
    """kr8s by way of a kubeconfig, closed at the end, and if it fails, as it doesn't do by itself."""
    server.write_kubeconfig(config, **options)
    api = kr8s.asyncio.Api(bypass_factory=True, kubeconfig=str(config))
    try:
        yield await api
    finally:
        await closed(api)


async def closed(api: kr8s.asyncio.Api) -> None:
    """Close the session, which kr8s never closes."""
    if api._session is not None:
        await api._session.aclose()


async def services_of(api: kr8s.asyncio.Api, **options: Any) -> Object:
    """A list of all Services."""
    async with api.call_api("GET", version="v1", url="services", **options) as response:
        content: Object = response.json()
        return content


async def lines_of(api: kr8s.asyncio.Api, patience: float | None = None, **query: str) -> list[str]:
    """All lines of a watch of Services.  `patience` is the read timeout in seconds."""
    options: Object = {} if patience is None else {"timeout": httpx.Timeout(PATIENCE, read=patience)}
    params = {"watch": "1"} | query
    async with api.call_api("GET", version="v1", url="services", stream=True, params=params, **options) as response:
        return [line async for line in response.aiter_lines()]


def test_lists_and_watches(guarded: ApiServer, tmp_path: Path) -> None:
    """A list and a watch through call_api, over TLS with a token, tell the same as over plain HTTP."""

    async def run() -> None:
        async with connected(guarded, tmp_path / "config") as api:
            content = await services_of(api)
            revision = content["metadata"]["resourceVersion"]
            params = {"watch": "1", "resourceVersion": revision, "allowWatchBookmarks": "true"}
            slices = api.call_api(
                "GET", version="discovery.k8s.io/v1", url="endpointslices", stream=True, params=params
            )  # fmt: skip
            async with slices as response:
                guarded.put(objects.endpoint_slice("web-1"))
                async for line in response.aiter_lines():
                    assert event_of(line)[:2] == ("ADDED", "web-1")
                    break
            await asyncio.to_thread(guarded.wait_for_watches, 0)

    guarded.put(service())
    asyncio.run(run())
    assert [(request.verb, request.resource) for request in guarded.requests()] == [
        ("get", "/version"), ("list", "services"), ("watch", "endpointslices"),
    ]  # fmt: skip
    assert {request.status for request in guarded.requests()} == {200}
    assert guarded.requests()[0].headers["accept-encoding"].startswith("gzip")


def test_urls(server: ApiServer, tmp_path: Path) -> None:
    """A base of /api/v1 wants an empty version, a namespace stands between, and names are discovered."""
    cases: tuple[Object, ...] = ({"version": "", "base": "/api/v1"}, {"version": "v1", "namespace": "shop"})

    async def run() -> None:
        async with connected(server, tmp_path / "config") as api:
            for options in cases:
                async with api.call_api("GET", url="services", **options) as response:
                    assert response.json()["items"] == []
            server.clear_requests()
            assert [each async for each in api.get("svc", namespace=kr8s.ALL)] == []

    asyncio.run(run())
    assert [request.path for request in server.requests()] == [
        "/api",
        "/api/v1",
        "/apis",
        "/apis/discovery.k8s.io/v1",
        "/apis/events.k8s.io/v1",
        "/apis/networking.k8s.io/v1",
        SERVICES,
    ]


@pytest.mark.parametrize(
    ("respond", "tries", "status"),
    [
        (faults.Respond(400), 1, dict),
        (faults.Respond(401), 4, dict),
        (faults.Respond(403), 4, dict),
        (faults.Respond(410), 1, dict),
        (faults.Respond(429, body=b"Too many requests\n"), 1, str),
        (faults.Respond(500), 1, str),
        (faults.Respond(503), 1, str),
    ],
)
def test_raises_server_error(
    server: ApiServer, tmp_path: Path, respond: faults.Respond, tries: int, status: type[object]
) -> None:
    """Any status of 400 and more is a ServerError.  Only 401 and 403 are tried again, three times, at once."""

    async def run() -> None:
        async with connected(server, tmp_path / "config") as api:
            server.faults.add(faults.Fault(respond, count=tries))
            with pytest.raises(kr8s.ServerError) as caught:
                await services_of(api)
            assert caught.value.response is not None
            assert caught.value.response.status_code == respond.code
            assert isinstance(caught.value.status, status)
            assert len(server.requests(verb="list")) == tries
            server.faults.add(faults.Fault(faults.Respond(404, body=b"{}")))
            with pytest.raises(KeyError, match="message"):
                await services_of(api)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (faults.EndWatch(), None),
        (faults.error_event(410), None),
        (faults.Inject(b'{"type":"ADD', faults.Parting.END), None),
        (faults.Inject(b'{"type":"ADD', faults.Parting.CLOSE), httpx.RemoteProtocolError),
        (faults.Reset(), httpx.ReadError),
        (faults.BlackHole(), kr8s.APITimeoutError),
    ],
)
def test_streams_end(server: ApiServer, tmp_path: Path, action: faults.Action, error: type[Exception] | None) -> None:
    """A broken stream raises httpx's errors, a silent stream kr8s' own, and a clean end raises nothing."""

    async def run() -> None:
        async with connected(server, tmp_path / "config") as api:
            server.faults.add(faults.Fault(action, verb="watch"))
            if error is not None:
                with pytest.raises(error):
                    await lines_of(api, patience=0.5 if error is kr8s.APITimeoutError else PATIENCE)
            else:
                lines = await lines_of(api)
                assert lines == ([action.data.decode().strip()] if isinstance(action, faults.Inject) else [])

    asyncio.run(run())


def test_session_is_shared(guarded: ApiServer, tmp_path: Path) -> None:
    """A 401 or 403 replaces the session and so cuts every other stream, unless kr8s doesn't check the status."""

    async def run(options: Object) -> list[str]:
        async with connected(guarded, tmp_path / "config") as api:
            watch = asyncio.create_task(lines_of(api, resourceVersion=str(guarded.revision)))
            await asyncio.to_thread(guarded.wait_for_watches, 1)
            guarded.faults.add(faults.Fault(faults.Respond(403), verb="list"))
            await services_of(api, **options)
            guarded.faults.add(faults.Fault(faults.EndWatch()))
            return await watch

    assert asyncio.run(run({"raise_for_status": False})) == []
    guarded.faults.clear()
    with pytest.raises(httpx.ReadError):
        asyncio.run(run({}))


def test_reads_the_token_when_it_is_refused(
    guarded: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rotation a request fails once, and is repeated with the token that is in the file by then."""
    for name, value in guarded.environment.items():
        monkeypatch.setenv(name, value)
    account = guarded.write_service_account(tmp_path)

    async def run() -> None:
        api = await kr8s.asyncio.api(serviceaccount=str(account), kubeconfig="/nonexistent")
        guarded.rotate_token()
        await services_of(api)
        guarded.rotate_token(publish=False)
        with pytest.raises(kr8s.ServerError, match="Unauthorized"):
            await services_of(api)
        await closed(api)

    asyncio.run(run())
    assert [request.status for request in guarded.requests(verb="list")] == [401, 200, 401, 401, 401, 401]


def test_a_token_with_a_newline_is_refused(guarded: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token file is sent as it is, which fails before anything is sent if it ends in a newline."""
    for name, value in guarded.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "token").write_text(f"{guarded.token}\n")
    assert guarded.authority is not None
    (tmp_path / "ca.crt").write_bytes(guarded.authority.certificate)

    async def run() -> None:
        await kr8s.asyncio.api(serviceaccount=str(tmp_path), kubeconfig="/nonexistent")

    with pytest.raises(httpx.LocalProtocolError, match="Illegal header value"):
        asyncio.run(run())
    assert guarded.requests() == []


def test_takes_a_token_per_request(guarded: ApiServer, tmp_path: Path) -> None:
    """A header of the request wins over the session's, which stays as it was after reauthenticate: no stream is cut."""

    async def run() -> None:
        async with connected(guarded, tmp_path / "config", embed=False) as api:
            watch = asyncio.create_task(lines_of(api, resourceVersion=str(guarded.revision)))
            await asyncio.to_thread(guarded.wait_for_watches, 1)
            guarded.rotate_token()
            await api.auth.reauthenticate()
            assert (await services_of(api, raise_for_status=False))["code"] == 401
            fresh = await services_of(api, raise_for_status=False, headers=bearer(api.auth.token or ""))
            assert fresh["kind"] == "ServiceList"
            guarded.faults.add(faults.Fault(faults.EndWatch()))
            assert await watch == []

    asyncio.run(run())


def test_lines_are_not_events(server: ApiServer, tmp_path: Path) -> None:
    """aiter_lines cuts an event at characters that JSON needn't escape.  Splitting bytes at newlines doesn't."""

    async def run() -> list[int]:
        async with connected(server, tmp_path / "config") as api:
            server.faults.add(faults.Fault(faults.EndWatch(), count=None))
            cut = await lines_of(api)
            query = {"watch": "1"}
            async with api.call_api("GET", version="v1", url="services", stream=True, params=query) as response:
                whole = b"".join([chunk async for chunk in response.aiter_bytes()]).splitlines()
            return [len(cut), len(whole)]

    server.put(service(note="one\x85two\u2028three"))
    assert asyncio.run(run()) == [3, 1]


def test_warns_of_new_versions(server: ApiServer, tmp_path: Path) -> None:
    """A server newer than kr8s knows is a UserWarning, and works."""

    async def run() -> None:
        async with connected(server, tmp_path / "config") as api:
            await services_of(api)

    server.settings.version = "v1.36.2"
    with pytest.warns(UserWarning, match=r"v1\.36\.2 is not supported"):
        asyncio.run(run())


@pytest.mark.parametrize("case", ["stopped", "untrusted", "expired"])
def test_api_needs_the_server(guarded: ApiServer, tmp_path: Path, case: str) -> None:
    """`await api()` already asks the server, and raises if that isn't there, isn't trusted or refuses the token."""

    async def run() -> None:
        async with connected(guarded, tmp_path / "config"):
            raise AssertionError("connected")

    if case == "stopped":
        guarded.stop()
    elif case == "untrusted":
        with ApiServer(tls=True) as other:
            guarded.authority = other.authority  # for the kubeconfig
    else:
        guarded.expire_token()
    with pytest.raises(kr8s.ServerError if case == "expired" else httpx.ConnectError):
        asyncio.run(run())


def test_leaves_files_behind(guarded: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates in a kubeconfig go to new temporary files each time, and nothing to the home directory."""
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    async def run(**options: Any) -> int:
        async with connected(guarded, tmp_path / "config", **options) as api:
            await api.auth.reauthenticate()
        return len(list((tmp_path / "tmp").iterdir()))

    assert asyncio.run(run(embed=False)) == 0
    assert asyncio.run(run()) == 2
    assert list((tmp_path / "home").iterdir()) == []


def test_is_confused_by_httpx_errors_in_its_block(server: ApiServer, tmp_path: Path) -> None:
    """kr8s takes a 403 that its caller raises inside the block for its own.  Another error passes."""

    async def run(error: Callable[[httpx.Response], Awaitable[None]]) -> None:
        async with connected(server, tmp_path / "config") as api:
            server.faults.add(faults.Fault(faults.Respond(403)))
            async with api.call_api("GET", version="v1", url="services", raise_for_status=False) as response:
                await error(response)

    async def status_error(response: httpx.Response) -> None:
        response.raise_for_status()

    async def own_error(response: httpx.Response) -> None:
        raise LookupError(response.status_code)

    with pytest.raises(RuntimeError, match="didn't stop"):
        asyncio.run(run(status_error))
    with pytest.raises(LookupError):
        asyncio.run(run(own_error))

"""Who may connect: TLS and mutual TLS through the wire, on both engines."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest
from support.secured import Secured, put

from embershard import AsyncClient, Client, DeadlineExceeded, EmbershardError, Security, Unavailable


def refusal(secured: Secured, security: Security) -> EmbershardError:
    """Why a client can't call."""
    with Client(secured.address, security=security) as client, pytest.raises(EmbershardError) as caught:
        client.list_versions()
    secured.told.append(f"{caught.value} {caught.value!r}")
    return caught.value


def serial_number(secured: Secured) -> int:
    """Of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=secured.folder / "ca.pem")
    context.load_cert_chain(secured.folder / "client.pem", secured.folder / "client.key")
    context.set_alpn_protocols(["h2"])
    host, _, port = secured.address.rpartition(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host) as tls:
        return int(tls.getpeercert()["serialNumber"], 16)  # type: ignore[index, arg-type]  # it has one


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (None, "wants another certificate of the client"),
        ("foreign", "wants another certificate of the client"),
        ("expired", "wants another certificate of the client"),
    ],
)
def test_a_client_without_the_right_certificate_cannot_connect(
    secured: Secured, client: str | None, message: str
) -> None:
    own = secured.of_client(client) if client else {"certificate": None, "key": None}
    error = refusal(secured, secured.security(**own))
    assert isinstance(error, Unavailable)
    assert message in str(error)


def test_a_client_refuses_a_server_of_another_authority(secured: Secured) -> None:
    error = refusal(secured, secured.security(ca=secured.folder / "other.pem"))
    assert isinstance(error, Unavailable)
    assert "is of no authority that is known here: give the file of its authority (--ca FILE" in str(error)


def test_a_client_refuses_a_server_whose_certificate_has_expired(secured: Secured) -> None:
    secured.show(secured.issue(secured.authority, expired=True))
    try:
        assert "the server's certificate has expired" in str(refusal(secured, secured.security()))
    finally:
        secured.show(secured.issue(secured.authority))


def test_a_client_refuses_a_server_of_another_name_unless_it_is_told_that(secured: Secured) -> None:
    secured.show(secured.issue(secured.authority, "embeddings.example"))
    try:
        assert "certificate is for another name" in str(refusal(secured, secured.security()))
        named = secured.security(server_name="embeddings.example")
        with Client(secured.address, security=named) as client:
            assert client.describe().name == "secured"
    finally:
        secured.show(secured.issue(secured.authority))


def test_a_client_of_plaintext_is_told_what_to_give(secured: Secured) -> None:
    error = refusal(secured, Security(token=secured.tokens["admin"]))
    assert isinstance(error, Unavailable)
    assert "speaks TLS, perhaps (--ca FILE or --tls)" in str(error)


def test_who_waits_for_a_service_learns_why_it_waits_in_vain(secured: Secured) -> None:
    wrong = secured.security(ca=secured.folder / "other.pem")
    with Client(secured.address, security=wrong) as client, pytest.raises(DeadlineExceeded, match="no authority"):
        client.wait_ready(timeout_s=0.2)

    async def wait() -> None:
        async with AsyncClient(secured.address, security=wrong) as client:
            await client.wait_ready(timeout_s=0.2)

    with pytest.raises(DeadlineExceeded, match="no authority"):
        asyncio.run(wait())


def test_a_renewed_certificate_is_shown_without_a_restart(secured: Secured) -> None:
    with Client(secured.address, security=secured.security()) as before:
        version = before.describe().version
        serial = secured.show(secured.issue(secured.authority))
        assert serial_number(secured) == serial
        assert before.describe().version == version


@pytest.mark.parametrize("broken", ["server.key", "server.pem", "ca.pem"])
@pytest.mark.parametrize("harm", ["garbage", "half", "another", "gone"])
def test_a_broken_renewal_leaves_what_was_there_and_is_told_once(secured: Secured, broken: str, harm: str) -> None:
    serial, path = serial_number(secured), secured.folder / broken
    right, said = path.read_bytes(), secured.service.said("files of TLS have changed and can't be used")
    match harm:
        case "garbage":
            put(path, b"no PEM at all")
        case "half":
            put(path, right[: len(right) // 2])
        case "another" if broken != "ca.pem":  # another authority is no harm
            other = secured.issue(secured.authority)
            pem = other.private_key_pem if broken.endswith("key") else other.cert_chain_pems[0]
            put(path, pem.bytes())
        case _:
            path.unlink()
    kept = secured.folder / "kept.pem"  # the authority, as clients have it
    secured.authority.cert_pem.write_to_path(kept)
    try:
        for _ in range(3):
            with Client(secured.address, security=secured.security(ca=kept)) as client:
                client.describe()
        secured.service.wait_said("files of TLS have changed and can't be used", said + 1)
    finally:
        put(path, right)
    assert serial_number(secured) == serial
    assert secured.service.said("files of TLS have changed and can't be used") == said + 1


def test_a_renewed_authority_of_clients_holds_for_new_connections(secured: Secured) -> None:
    path, kept = secured.folder / "ca.pem", secured.folder / "kept.pem"
    right = path.read_bytes()
    put(kept, right)
    put(path, (secured.folder / "other.pem").read_bytes())
    try:
        foreign = secured.security(ca=kept, **secured.of_client("foreign"))
        with Client(secured.address, security=foreign) as client:
            assert client.describe().name == "secured"
        assert "wants another certificate of the client" in str(refusal(secured, secured.security(ca=kept)))
    finally:
        put(path, right)
    with Client(secured.address, security=secured.security()) as client:
        assert client.describe().name == "secured"

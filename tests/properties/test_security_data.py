"""Rules for all keys and certificates: built ones are read again, junk is malformed."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import MalformedPacket
from protocol.security_data import (
    ProviderInfo,
    PublishedKey,
    RsaPublicKey,
    SessionKey,
    UserCertificate,
    build_provider,
    build_public_key,
    build_published_keys,
    build_session_key,
    build_user_certificates,
    parse_provider,
    parse_public_key,
    parse_published_keys,
    parse_session_key,
    parse_user_certificates,
)

U32 = st.integers(0, 0xFFFFFFFF)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


@st.composite
def public_keys(draw: st.DrawFn) -> RsaPublicKey:
    size = draw(st.integers(1, 300))
    return RsaPublicKey(draw(st.integers(0, 256**size - 1)), draw(U32), size * 8)


PROVIDERS = st.builds(ProviderInfo, U32, NAMES)
PUBLISHED = st.builds(PublishedKey, PROVIDERS, public_keys())
CERTIFICATES = st.builds(
    lambda digest, mark, data: UserCertificate(digest, mark, len(data), data),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=100),
)


@given(public_keys())
def test_public_keys_are_read_as_they_were_built(key: RsaPublicKey) -> None:
    assert parse_public_key(build_public_key(key)) == key


@given(st.builds(SessionKey, U32, st.binary(min_size=1, max_size=600)))
def test_session_keys_are_read_as_they_were_built(key: SessionKey) -> None:
    assert parse_session_key(build_session_key(key)) == key


@given(st.lists(PUBLISHED, max_size=5).map(tuple))
def test_published_keys_are_read_as_they_were_built(keys: tuple[PublishedKey, ...]) -> None:
    assert parse_published_keys(build_published_keys(keys)) == keys


@given(st.lists(CERTIFICATES, max_size=5).map(tuple))
def test_certificates_are_read_as_they_were_built(some: tuple[UserCertificate, ...]) -> None:
    assert parse_user_certificates(build_user_certificates(some)) == some


@given(PROVIDERS)
def test_providers_are_read_as_they_were_built(provider: ProviderInfo) -> None:
    assert parse_provider(build_provider(provider)) == provider


@given(st.binary(max_size=400), st.lists(PUBLISHED, max_size=3).map(tuple), st.data())
def test_junk_is_refused_as_malformed(
    junk: bytes, keys: tuple[PublishedKey, ...], data: st.DataObject
) -> None:
    whole = build_published_keys(keys)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + junk[:4] + whole[at + len(junk[:4]) :]
    for parse in (
        parse_public_key,
        parse_session_key,
        parse_published_keys,
        parse_user_certificates,
        parse_provider,
    ):
        for octets in (junk, changed, whole[:at]):
            with contextlib.suppress(MalformedPacket):
                parse(octets)

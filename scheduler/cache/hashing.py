"""Names for the contents of full pages: equal digests, equal tokens from the start of the sequence on."""

from __future__ import annotations

from array import array
from hashlib import blake2b

from scheduler.request import EngineRequest

_DIGEST_BYTES = 16
"""128 bits: among 2**40 pages, two that differ share a digest with a chance of 2**-49."""


def extend_digests(request: EngineRequest, num_pages: int, page_size: int) -> list[bytes]:
    """Digest the request's pages up to the `num_pages`-th, all of them full; the list grows as tokens do.

    A page's digest is taken of its parent's digest and its own tokens; the first page's parent is the digest of the
    request's extra keys, without which equal tokens do not have equal keys and values.
    """
    digests = request.page_digests
    for index in range(len(digests), num_pages):
        parent = digests[-1] if digests else _root_digest(request)
        tokens = array("q", request.token_ids(index * page_size, (index + 1) * page_size))
        digests.append(blake2b(parent + tokens.tobytes(), digest_size=_DIGEST_BYTES).digest())
    return digests


def _root_digest(request: EngineRequest) -> bytes:
    salt = request.cache_salt
    return b"" if salt is None else blake2b(salt.encode(), digest_size=_DIGEST_BYTES).digest()

"""A set of digests in memory, 8 bytes each: it shows at once that a digest is not recorded."""

DIGEST_BYTES = 8
_BUCKETS = 256


class DigestSet:
    """Digests that may be recorded: it has every one that was added, and rarely another."""

    def __init__(self) -> None:
        self._buckets = [bytearray() for _ in range(_BUCKETS)]
        self.count = 0

    def add(self, digests: bytes) -> None:
        """Add digests, given one after the other."""
        buckets = self._buckets
        for start in range(0, len(digests), DIGEST_BYTES):
            buckets[digests[start]] += digests[start : start + DIGEST_BYTES]
        self.count += len(digests) // DIGEST_BYTES

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._buckets[digest[0]]

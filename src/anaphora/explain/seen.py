"""Which openings an earlier process has seen: digests that outlive a restart, so that a miss can say so. Pure.

    tokens   |64|..|128|....|256|........|512|................|1024|     a digest up to each of these places
              d1    d2       d4           d8                   ...       chained: equal only if all in front is equal

Of a prompt that an earlier process computed and this one did not reuse it is then known that it was cached once. The
digests are keyed by tenant and model: nobody's are found by another's.
"""

import hashlib
from collections.abc import Callable, Iterable

from anaphora.core.index import Tokens
from anaphora.engine.request import Tenant

FIRST_PLACE = 64
DIGEST_BYTES = 12
MAX_DIGESTS = 2**17
"""About 13 MB in memory for those of this process, and as many for those before; some 20,000 prompts."""


class Seen:
    """Digests of an earlier process, and a place to hand those of this one to."""

    def __init__(self, earlier: Iterable[bytes], *, model_digest: bytes, keep: Callable[[bytes], None]) -> None:
        """`keep` is handed the new digests of each request, end to end."""
        self._earlier = frozenset(earlier)
        self._model_digest = model_digest
        self._keep = keep
        self._own: dict[bytes, None] = {}

    def look(self, tokens: Tokens, tenant: Tenant) -> int:
        """Tokens that a request of an earlier process opened with too, at least; and keep the digests of these.

        Cost: one digest over the tokens.
        """
        num_seen, fresh = 0, []
        for place, digest in self._digests(tokens, tenant):
            if digest in self._earlier:
                num_seen = place
            elif digest not in self._own:
                self._own[digest] = None
                fresh.append(digest)
        while len(self._own) > MAX_DIGESTS:
            del self._own[next(iter(self._own))]
        if fresh:
            self._keep(b"".join(fresh))
        return num_seen

    def _digests(self, tokens: Tokens, tenant: Tenant) -> list[tuple[int, bytes]]:
        key = hashlib.blake2b(
            tenant.encode("utf-8", "surrogatepass"),
            key=self._model_digest[:64],
            digest_size=32,
            person=b"anaphora.seen.1",
        ).digest()
        chain = hashlib.blake2b(key=key, digest_size=DIGEST_BYTES)
        found, start, place = [], 0, FIRST_PLACE
        while place <= len(tokens):
            chain.update(tokens[start:place].tobytes())
            found.append((place, chain.copy().digest()))
            start, place = place, 2 * place
        return found

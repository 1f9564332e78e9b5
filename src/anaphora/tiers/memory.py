"""Memory that is used again. Memory that is new costs more than what is then done in it: the kernel clears it first."""

import numpy as np
from numpy.typing import NDArray


class Memory:
    """Room for one thing at a time: what is taken is good until the next time. One thread at a time."""

    def __init__(self) -> None:
        self._bytes: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)

    def take(self, num_bytes: int) -> memoryview:
        """Get so many bytes, with anything in them. Cost: O(1), unless it is more than ever before."""
        return self.array(num_bytes).data

    def array(self, num_bytes: int) -> NDArray[np.uint8]:  # [num_bytes]
        """Do as `take`, as an array."""
        if num_bytes > self._bytes.size:
            self._bytes = np.empty(num_bytes, dtype=np.uint8)
        return self._bytes[:num_bytes]

"""Do tensor work before the engine's thread takes over, without leaving a team of threads behind.

libgomp, which torch computes with on Linux, gives every thread that computes a team of workers of its own. Once there
are more workers than cores, all teams stop spinning at their barriers and sleep instead, and a step has hundreds of
barriers: measured with a second, idle team on 2 cores, a decode step took 98 ms instead of 65, a hit 170 instead
of 120.
A thread that ends takes its team with it.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def in_passing_thread(work: Callable[[], Result]) -> Result:
    """Do the work in a thread that has ended when this returns. Raises what the work raises."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="anaphora-passing") as executor:
        return executor.submit(work).result()

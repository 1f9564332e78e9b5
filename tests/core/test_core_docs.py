"""The running example of docs/core.md, run."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "core.md"


def test_the_running_example_is_true():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 8
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {})

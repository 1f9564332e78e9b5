"""Read request logs and usage exports. A line that can't be read is left out and told, never guessed."""

from dataclasses import dataclass
from pathlib import Path

from anaphora.contract.usage_records import NoUsage, UsageRecord, records_of
from anaphora.errors import AnaphoraError
from anaphora.prompt.strict_json import values_in


class UnreadableUsage(AnaphoraError):
    """A file can't be read, or has no usage in it at all."""


@dataclass(frozen=True, slots=True)
class UsageFile:
    """What one file holds."""

    path: Path
    records: tuple[UsageRecord, ...]
    problems: tuple[str, ...]  # one sentence for each thing left out


def read_usage(path: Path) -> UsageFile:
    """The records of a file: JSON lines, one JSON object, or a list of objects.

    Raises: UnreadableUsage where nothing in it is usage.
    Cost: the whole file in memory.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableUsage(f"{path} can't be read: {error}.") from None
    records: list[UsageRecord] = []
    problems: list[str] = []
    for where, value in values_in(text):
        try:
            if not isinstance(value, dict):
                raise NoUsage("is not a JSON object")
            records += records_of(value)
        except NoUsage as error:
            problems.append(f"{path.name}, {where} {error}.")
    if not records:
        first = problems[0] if problems else "It is empty."
        raise UnreadableUsage(f"{path} has no usage in it. {first}")
    return UsageFile(path, tuple(records), tuple(problems))

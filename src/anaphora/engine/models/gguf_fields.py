"""The fields in front of a GGUF file's tensors: settings, vocabulary, chat template.

    GGUF | version u32 | num_tensors u64 | num_fields u64 | field, field, ... | tensor directory | tensors
    field = key | type u32 | value        string = length u64 | bytes        array = type u32 | length u64 | values

Source: the GGUF specification of the ggml project, versions 2 and 3 (little-endian).
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

from anaphora.errors import ModelUnavailable

_MAGIC = b"GGUF"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_LENGTH = 1 << 28  # of a string in bytes or an array in values: more is a damaged file, not a model


def check_gguf(path: Path) -> None:
    """Raise ModelUnavailable unless the file opens like a GGUF file that can be read."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise ModelUnavailable(f"{path} can't be read: {error}") from error
    if head[:4] != _MAGIC or len(head) < 8:
        raise ModelUnavailable(
            f"{path} is not a GGUF file: it opens with {head[:4]!r}, not {_MAGIC!r}. Was it downloaded whole?"
        )
    (version,) = struct.unpack("<I", head[4:])
    if version > 0xFF:
        raise ModelUnavailable(
            f"{path} opens with {_MAGIC!r}, but no version number follows: it is another kind of file, or a GGUF file "
            "for big-endian machines."
        )
    if version not in (2, 3):
        raise ModelUnavailable(f"{path} is GGUF version {version}; versions 2 and 3 can be read.")


def read_fields(path: Path) -> dict[str, Any]:
    """Read a GGUF file's fields, arrays as lists. Raises: ModelUnavailable.

    Cost: one pass over the fields, a fraction of a second for a vocabulary of 50,000.
    """
    check_gguf(path)
    try:
        with path.open("rb") as file:
            file.seek(len(_MAGIC) + 4 + 8)
            num_fields = _length(file)
            return dict(_field(file) for _ in range(num_fields))
    except (struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        raise ModelUnavailable(
            f"{path} opens like a GGUF file but its fields can't be read ({error}). Was it downloaded whole?"
        ) from error


def _field(file: BinaryIO) -> tuple[str, Any]:
    key = _string(file)
    return key, _value(file, _scalar(file, "<I"))


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        element = _scalar(file, "<I")
        length = _length(file)
        if element in _SCALARS:
            code = _SCALARS[element][1]
            return list(struct.unpack(f"<{length}{code}", file.read(length * struct.calcsize(f"<{code}"))))
        return [_value(file, element) for _ in range(length)]
    return _scalar(file, _SCALARS[kind])


def _string(file: BinaryIO) -> str:
    data = file.read(length := _length(file))
    if len(data) != length:
        raise ValueError("the file ends inside a string")
    return data.decode("utf-8")


def _length(file: BinaryIO) -> int:
    length = int(_scalar(file, "<Q"))
    if length > _MAX_LENGTH:
        raise ValueError(f"a length of {length}")
    return length


def _scalar(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]

"""The house's rules as functions: each takes a source text and answers its complaints, an empty list if it has none."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 800
MAX_PARAMETERS = 5

BANNED_FILE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers"}

RETIRED = {
    "kv_index": "slot",
    "out_loc": "slot",
    "page": "extent",
    "block": "extent",
    "allocator": "pool",
    "manager": "pool",
    "trie": "index",
    "tree_cache": "index",
    "lock_ref": "lease",
    "touch": "acquire",
    "floating": "evictable",
    "retract": "preempt",
    "bump": "preempt",
    "req": "request",
    "reqs": "request",
    "seq": "sequence",
    "seqs": "sequence",
    "blob": "record",
    "offload": "demote",
    "retrieve": "load",
    "extra_key": "salt",
}
"""Words the glossary gave up, with ours. Left out: words with an everyday meaning beside the retired one."""

NAMES_OF_OTHERS = {"get_seq_length", "get_mask_sizes"}
"""Methods that Transformers calls by these names."""

_HOSTS = ("pypi" + r"\.org", "python" + r"hosted\.org", "npm" + r"js\.(org|com)", r"download\.py" + r"torch\.org")
_FOLDERS = ("work", "root", "home/[a-z]", "Users/[A-Za-z]", "tmp")
_PATHS = re.compile(rf"(?<![\w.~}}/-])/({'|'.join(_FOLDERS)})(/|\b)")
_REGISTRIES = re.compile("|".join(_HOSTS))

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: str) -> Iterator[Function]:
    """Every function and method of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            yield node


def long_functions(source: str) -> list[str]:
    """Functions that do not fit on a screen."""
    sizes = [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions(source)]
    return [f"{name} has {size} lines" for name, size in sizes if size > MAX_FUNCTION_LINES]


def long_file(source: str) -> list[str]:
    num_lines = len(source.splitlines())
    return [f"{num_lines} lines"] if num_lines > MAX_FILE_LINES else []


def many_parameters(source: str) -> list[str]:
    """Functions with more than five parameters besides self, or of those that callers may pass by place."""
    complaints = []
    for node in functions(source):
        arguments = node.args
        by_place = [one.arg for one in (*arguments.posonlyargs, *arguments.args) if one.arg not in ("self", "cls")]
        if len(by_place) > MAX_PARAMETERS:
            complaints.append(f"{node.name} takes {len(by_place)} parameters by place")
    return complaints


def bound_names(source: str) -> Iterator[str]:
    """Every name that a module gives to something: classes, functions, parameters, variables, attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def retired_words(source: str) -> list[str]:
    """Names with a retired word of the glossary in them."""
    complaints = []
    for name in set(bound_names(source)) - NAMES_OF_OTHERS:
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        for word, ours in RETIRED.items():
            if re.search(rf"(^|_){word}s?(_|$)", snake):
                complaints.append(f"{name}: say {ours}, not {word}")
    return complaints


def missing_docstring(source: str) -> list[str]:
    """A module with code in it says what it is."""
    tree = ast.parse(source)
    return ["no docstring"] if tree.body and ast.get_docstring(tree) is None else []


def banned_name(path: Path) -> list[str]:
    return [f"{path.name} says nothing"] if path.stem in BANNED_FILE_NAMES else []


def machine_paths(text: str) -> list[str]:
    """Paths that only one machine has."""
    return [match[0] for match in _PATHS.finditer(text)]


def registry_hosts(text: str) -> list[str]:
    return [match[0] for match in _REGISTRIES.finditer(text)]


def third_party_imports(source: str, standard: frozenset[str]) -> set[str]:
    """Top-level packages that a module imports and that are neither ours nor Python's."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found - standard - {"anaphora"}

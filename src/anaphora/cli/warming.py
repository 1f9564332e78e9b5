"""What `anaphora cache warm`, `check` and `import` need a model for."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer

from anaphora.api.model_text import renderer_of
from anaphora.api.shared_prompts import opening_of, share_prompts
from anaphora.cli.kept import NAME_LETTERS
from anaphora.cli.request_files import RequestFiles
from anaphora.config import Settings
from anaphora.core.index import Tokens, common_length
from anaphora.core.namespace import namespace_of, shared_namespace_of
from anaphora.core.region import Regions
from anaphora.engine.durable.pieces import Opening, find_wanted, pieces_of
from anaphora.engine.engine import Engine
from anaphora.engine.models.loading import load_model
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.request import GenerationRequest, RequestId, Sampling, Tenant
from anaphora.errors import RequestError, SettingsError
from anaphora.prompt.canonical import Message, Prompt, Text
from anaphora.prompt.render import Rendered, Renderer
from anaphora.prompt.template import TemplateRefused
from anaphora.tiers.base import Origin
from anaphora.tiers.disk import open_disk_tier


def digest_of(settings: Settings) -> Origin:
    """Load the model and say which one it is. For no tenant yet."""
    spec = _model_of(settings).spec
    return Origin(spec.digest, spec.name, None)


def warm(settings: Settings, path: Path, *, tenant: str) -> str | None:
    """Compute the stable opening of each request in a file and keep it on disk. Returns the last one's name.

    Raises: SettingsError, UnreadableRequests, RequestError.
    """
    if not settings.disk_cache_bytes:
        raise SettingsError("disk_cache_bytes is 0: there is nowhere to keep it.")
    name = None
    with Engine.load(settings.model, settings.engine_settings(), cache_dir=settings.cache_dir) as engine:
        share_prompts(engine, settings.shared_prompts)
        renderer = renderer_of(engine.tokenizer)
        regions = _regions(settings, renderer)
        for number, prompt in enumerate(_prompts(path)):
            tokens = stable_opening(renderer, prompt)
            if not tokens.size:
                raise RequestError("Nothing of this request is stable: it opens with what the user says last.")
            request = GenerationRequest(RequestId(f"warm-{number}"), tokens, Sampling(max_tokens=0), Tenant(tenant))
            receipt = engine.submit(request).result().receipt
            opening = _opening(tokens, engine.spec.digest, tenant, regions)
            name = [piece.key for piece in pieces_of(opening)][-1].hex()[:NAME_LETTERS]
            typer.echo(f"{name}: {len(tokens):,} tokens, {receipt.num_computed_tokens:,} of them computed now.")
        if not engine.flush():
            raise SettingsError("The disk is too slow: not all could be written in a minute.")
    return name


def check(settings: Settings, path: Path, *, tenant: str) -> None:
    """Print, for each request in a file, what of it is on disk and where that stops."""
    loaded = _model_of(settings)
    renderer = renderer_of(loaded.tokenizer)
    regions = _regions(settings, renderer)
    tier = open_disk_tier(settings.disk_cache_dir or settings.cache_dir / "kv", cap_bytes=2**62)
    try:
        for prompt in _prompts(path):
            rendered = renderer.render(prompt)
            tokens = rendered.tokens.astype(np.int32)
            opening = _opening(tokens[:-1], loaded.spec.digest, tenant, regions)
            wanted = find_wanted(tier, opening, num_present=0)
            num_found = wanted[-1].stop if wanted else 0
            typer.echo(
                f"{num_found:,} of {len(tokens):,} tokens are on disk, in {len(wanted):,} records; "
                f"{len(tokens) - num_found:,} would be computed. {_where(rendered, num_found)}"
            )
    finally:
        tier.close()


def stable_opening(renderer: Renderer, prompt: Prompt) -> Tokens:
    """Get the tokens that requests like this one open with, whatever the user says last."""
    last = prompt.messages[-1] if prompt.messages else None
    front = prompt.messages[:-1] if last is not None and last.role == "user" else prompt.messages
    where = f"messages[{len(front)}]"
    try:
        one, other = (
            renderer.render(
                replace(prompt, messages=(*front, Message("user", (Text(said, f"{where}.content"),), where)))
            ).tokens
            for said in ("0 one", "Zwei")
        )
    except TemplateRefused as error:
        raise RequestError(f"The model's chat template can't render this request: {error}") from error
    return one[: common_length(one, other)].astype(np.int32)


def _where(rendered: Rendered, num_found: int) -> str:
    """Say in which part of a request its token `num_found` stands."""
    if num_found >= len(rendered.tokens) - 1:
        return "That is all of it: the last token always runs."
    at = int(rendered.offsets[num_found][0])
    path = next((piece.path for piece in rendered.pieces if piece.start <= at < piece.stop), "the end")
    return f"It stops in {path or 'the template'}, at {rendered.text[at : at + 40]!r}."


def _prompts(path: Path) -> Iterator[Prompt]:
    for _, recorded in RequestFiles().read(path):
        yield recorded.side.prompt


def _opening(tokens: Tokens, digest: bytes, tenant: str, regions: Regions) -> Opening:
    namespace = namespace_of(model_digest=digest, tenant=tenant)
    return Opening(tokens, namespace, shared_namespace_of(model_digest=digest), regions.num_shared(tokens))


def _regions(settings: Settings, renderer: Renderer) -> Regions:
    regions = Regions()
    for path in settings.shared_prompts:
        regions.add(opening_of(renderer, path.expanduser().read_text(encoding="utf-8")))
    return regions


def _model_of(settings: Settings) -> LoadedModel:
    dtype: Any = getattr(torch, settings.dtype)
    return load_model(
        settings.model, cache_dir=settings.cache_dir, dtype=dtype, device=torch.device("cpu"), progress=False
    )

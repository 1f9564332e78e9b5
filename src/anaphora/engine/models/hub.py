"""A model of the Hugging Face hub as a folder on this machine."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from anaphora.errors import ModelUnavailable

_SETTINGS_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_SAFE_WEIGHTS = "*.safetensors"
_PICKLED_WEIGHTS = "pytorch_model*.bin"
_NEVER = ("*/*", "consolidated*")  # copies in other formats that some repositories keep beside the weights


def snapshot(repo_id: str) -> Path:
    """Return the folder with the hub model's files, downloading what the hub's own cache doesn't have.

    Takes safetensors weights; pickled ones only from a model that has nothing else. Without network, a model
    that was downloaded before is still found.

    Raises: ModelUnavailable.
    """
    try:
        folder = _download(repo_id, (*_SETTINGS_FILES, _SAFE_WEIGHTS))
        if not any(folder.glob(_SAFE_WEIGHTS)):
            folder = _download(repo_id, (*_SETTINGS_FILES, _PICKLED_WEIGHTS))
    except GatedRepoError as error:
        raise ModelUnavailable(
            f"The hub model {repo_id} is gated. Accept its terms on its page and log in with `hf auth login`."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelUnavailable(
            f"The hub has no model {repo_id} (or it is private: then log in with `hf auth login`). "
            "Nothing of that name lies on this machine either."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelUnavailable(
            f"The hub model {repo_id} is not on this machine and the hub can't be reached: {_reason(error)}. "
            "Check the network; or copy the model's folder here and give its path."
        ) from error
    return folder


def _download(repo_id: str, patterns: tuple[str, ...]) -> Path:
    return Path(snapshot_download(repo_id, allow_patterns=list(patterns), ignore_patterns=list(_NEVER)))


def _reason(error: BaseException) -> str:
    """Give the first cause's words: the outer error only says that something failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

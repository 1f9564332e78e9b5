"""The error tree. Every error that leaves a public door of Anaphora is one of these.

    AnaphoraError
    ├── RequestError            the caller's mistake; names the field                  (HTTP 400)
    │   ├── PromptTooLong       more tokens than the model's context or the pool hold  (HTTP 400)
    │   ├── UnknownModel        no such model here                                     (HTTP 404)
    │   ├── UnknownResponse     no such response kept here                             (HTTP 404)
    │   ├── UnknownObject       no such batch or file kept here                        (HTTP 404)
    │   ├── UnsupportedSetting  a right value that the profile's model does not offer  (HTTP 400)
    │   ├── NotAuthenticated    missing or wrong API key                               (HTTP 401)
    │   └── BodyTooLarge        more bytes than the server accepts                     (HTTP 413)
    ├── Overloaded              the queue is full; try again after retry_after_s       (HTTP 429 / 529)
    ├── RequestTimeout          the per-request time limit passed                      (HTTP 504 / 408)
    ├── EngineFailure           a step failed; this request is lost, others are not    (HTTP 500)
    ├── EngineStopped           the engine was closed while the request was in flight  (HTTP 503)
    ├── ModelUnavailable        the model's files can't be had: what was tried, what to do
    └── SettingsError           a setting is wrong: which one, where it was set, what is allowed

Messages are written to the reader: what happened, which input, what to do.
"""


class AnaphoraError(Exception):
    """Base of everything raised on purpose."""


class RequestError(AnaphoraError):
    """A request that can't be served as it stands. `field` is a path such as `messages[0].content`."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class PromptTooLong(RequestError):
    """The prompt, or prompt plus max_tokens, does not fit."""


class UnknownModel(RequestError):
    """The request names a model that is not served here."""


class UnknownResponse(RequestError):
    """The request names an earlier response that is not kept here (any more)."""


class UnknownObject(RequestError):
    """The request names a batch or a file that is not kept here (any more)."""


class UnsupportedSetting(RequestError):
    """The request asks for something right that the model whose rules count does not offer."""


class NotAuthenticated(RequestError):
    """No API key, or one that is not known."""


class BodyTooLarge(RequestError):
    """The request body has more bytes than the server accepts."""


class Overloaded(AnaphoraError):
    """The queue is full. Nothing of the request was kept."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class RequestTimeout(AnaphoraError):
    """The request's time limit passed before it finished."""


class EngineFailure(AnaphoraError):
    """A step of the engine failed. The request is lost; the engine and other requests go on."""


class EngineStopped(AnaphoraError):
    """The engine was closed."""


class ModelUnavailable(AnaphoraError):
    """The model can't be had. The message lists what was tried and what to do."""


class SettingsError(AnaphoraError):
    """A setting has no meaning. The message names it, where it was set, and what is allowed."""

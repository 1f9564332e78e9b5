"""Write the default model as a float32 checkpoint, for servers that don't read its GGUF file.

python export_checkpoint.py FOLDER        with the project's own environment
"""

import argparse
from pathlib import Path

import torch

from anaphora.engine.models.catalog import DEFAULT_MODEL
from anaphora.engine.models.fetch import default_cache_dir
from anaphora.engine.models.loading import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    loaded = load_model(
        DEFAULT_MODEL,
        cache_dir=default_cache_dir(),
        dtype=torch.float32,
        device=torch.device("cpu"),
        name=None,
        progress=True,
    )
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    print(f"Wrote {folder}")


if __name__ == "__main__":
    main()

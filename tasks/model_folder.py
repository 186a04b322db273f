"""Which model a folder holds, told without torch."""

import hashlib
import json
from pathlib import Path

from tasks.errors import UserError

# Pickled weights are never read, and a card says nothing to a machine; of the rest, code may read anything.
_NEVER_READ = (".bin", ".pt", ".pth", ".gguf", ".md")


def folder_digest(folder: Path) -> str:
    """The same for the same model, wherever it lies. Raises UserError where it is none."""
    if not (folder / "config.json").is_file():
        inside = folder / "model"  # as a version that was fetched from MLflow has it
        hint = f"; give {inside}" if (inside / "config.json").is_file() else ""
        raise UserError(f"model.name: the folder {folder} holds no config.json, so it is no model{hint}")
    digests = {}
    try:
        for file in sorted(folder.iterdir()):
            if file.is_file() and file.suffix not in _NEVER_READ:
                with file.open("rb") as content:
                    digests[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"model.name: {error.filename} cannot be read ({error.strerror})") from None
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()

"""Files that were cut short, as by a machine that lost its power: found by their frame, without reading all of them."""

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open


def first_torn(files: Iterable[Path]) -> Path | None:
    """The first by name of the tables, weights, torch's files and JSON among `files` that cannot be read."""
    return next((file for file in sorted(files) if _is_torn(file)), None)


def _is_torn(file: Path) -> bool:
    try:
        match file.suffix:
            case ".parquet":
                pq.read_metadata(file)
            case ".safetensors":
                with safe_open(str(file), framework="np"):
                    pass
            case ".pt" | ".pth" | ".bin":  # torch's files are zip archives, with their list at the end
                zipfile.ZipFile(file).close()
            case ".json":
                json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, pa.ArrowException, SafetensorError, zipfile.BadZipFile):
        return True
    return False

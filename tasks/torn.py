"""Files that were cut short, as by a machine that lost its power: found by their frame, without reading all of them."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open


def first_torn(files: Iterable[Path]) -> Path | None:
    """The first of the tables (Parquet) and weights (safetensors) among `files` that cannot be read, by name."""
    return next((file for file in sorted(files) if _is_torn(file)), None)


def _is_torn(file: Path) -> bool:
    try:
        if file.suffix == ".parquet":
            pq.read_metadata(file)
        elif file.suffix == ".safetensors":
            with safe_open(str(file), framework="np"):
                pass
    except (OSError, pa.ArrowException, SafetensorError):
        return True
    return False

"""Folders of one run that are whole wherever they are there: filled under another name, and removed under another.

What several runs share is in the store (`tasks.run.stored`), where two may fill the same folder at once.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from tasks.torn import first_torn


def is_whole(folder: Path) -> bool:
    """Whether it is there, and no file in it was torn by a machine that lost its power."""
    return folder.is_dir() and not first_torn(file for file in folder.rglob("*") if file.is_file())


def make_whole(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill(path)` make the folder at a path beside it, where nothing is, and give it its name when that is done.

    One that is there already, and whole, is left as it is.
    """
    if is_whole(folder):
        return
    remove_whole(folder)
    unfinished = folder.with_name(f"unfinished-{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)  # of an attempt that was killed here
    fill(unfinished)
    unfinished.rename(folder)


def remove_whole(folder: Path) -> None:
    """Remove a folder, so that a kill leaves it as it was or gone."""
    going = folder.with_name(f"going-{folder.name}")
    shutil.rmtree(going, ignore_errors=True)  # of an attempt that was killed here
    if folder.is_dir():
        folder.rename(going)
        shutil.rmtree(going, ignore_errors=True)

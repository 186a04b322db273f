"""A folder is whole or not there, whenever the program is killed."""

import pytest

from tasks.whole import is_whole, make_whole, remove_whole


def test_what_is_removed_is_whole_or_gone_and_a_removal_that_was_killed_is_no_hindrance(tmp_path):
    for name in ("merged", "going-merged"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    remove_whole(tmp_path / "merged")
    assert not list(tmp_path.iterdir())
    (tmp_path / "going-merged").mkdir()
    remove_whole(tmp_path / "merged")
    assert not list(tmp_path.iterdir())


def test_what_is_made_gets_its_name_when_it_is_done_and_is_made_anew_where_it_was_torn(tmp_path):
    folder, made = tmp_path / "model", []

    def fill(path):
        assert not path.exists() and not folder.exists()
        path.mkdir()
        (path / "config.json").write_text("{}")
        made.append(path)
        if len(made) == 1:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        make_whole(folder, fill)
    assert not is_whole(folder)
    for _ in range(2):
        make_whole(folder, fill)
        assert is_whole(folder) and [path.name for path in tmp_path.iterdir()] == ["model"] and len(made) == 2
    (folder / "config.json").write_text("{")
    assert not is_whole(folder)
    make_whole(folder, fill)
    assert is_whole(folder) and len(made) == 3

import math
from pathlib import Path

import matplotlib.colors
import matplotlib.image
import pandas as pd
import pytest
from markdown_it import MarkdownIt

from tasks import metrics
from tasks.config import Config
from tasks.outcome import Outcome
from tasks.report import (
    before_after_table,
    before_after_text,
    curve,
    examples,
    score_table,
    score_text,
    sparkline,
    verdict,
    write_report,
)
from tasks.run import Run
from tasks.statistics import mcnemar_exact, paired_permutation

BEFORE = {
    "accuracy": 0.25,
    "accuracy_stderr": 0.02,
    "accuracy_flexible": 0.5,
    "accuracy_flexible_stderr": 0.025,
    "reward": 0.5,
    "reward_stderr": 0.05,
}
AFTER = BEFORE | {"accuracy": 0.75, "accuracy_flexible": 0.8, "reward": 2.25}
CHANGE = mcnemar_exact([False] * 11 + [True] * 9, [True] * 11 + [False] + [True] * 8)


def results(correct, completions=None):
    n = len(correct)
    return pd.DataFrame(
        {
            "id": [f"q{number}" for number in range(n)],
            "question": [f"What is {number} + 1?" for number in range(n)],
            "answer": [str(number + 1) for number in range(n)],
            "completion": completions or [f"words {number}" for number in range(n)],
            "correct": [one == "1" for one in correct],
            "reward": [2.0 * int(one) for one in correct],
            "tokens": 7,
            "finished": True,
        }
    )


def saved(tmp_path, before, after):
    paths = tmp_path / "before.parquet", tmp_path / "after.parquet"
    for table, path in zip((before, after), paths, strict=True):
        table.to_parquet(path)
    return paths


def write_metrics(path: Path, steps: int, every: int | None = 5) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    for step in range(1, steps + 1):
        metrics.append(path, step, {"train/reward": step / steps})
        if every and step % every == 0:
            metrics.append(path, step, {"validation/accuracy": step / steps, "validation/accuracy_stderr": 0.05})
    return path


class TestSparkline:
    def test_it_rises_with_the_values(self):
        assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"

    def test_equal_values_are_flat_and_none_is_empty(self):
        assert sparkline([3.0, 3.0]) == "▁▁"
        assert sparkline([]) == ""

    def test_what_is_not_finite_is_a_gap(self):
        assert sparkline([0.0, math.nan, 1.0, math.inf]) == "▁ █ "


class TestTable:
    def test_it_shows_each_measure_with_its_error_and_the_test_of_the_change(self):
        assert before_after_table(BEFORE, AFTER, CHANGE).splitlines() == [
            "| | before | after | change |",
            "|---|---:|---:|---:|",
            "| Accuracy, strict | 25.0 % ± 2.0 | 75.0 % ± 2.0 | +50.0 points |",
            "| Accuracy, flexible | 50.0 % ± 2.5 | 80.0 % ± 2.5 | +30.0 points |",
            "| Mean reward | 0.500 ± 0.050 | 2.250 ± 0.050 | +1.750 |",
            "",
            "+50.0 points on 20 questions: 11 better, 1 worse (exact McNemar test, p = 0.0063).",
        ]

    def test_without_a_gold_there_is_only_the_reward(self):
        summary = {"reward": -50.0, "reward_stderr": 2.0}
        change = paired_permutation([-60.0] * 20, [-50.0] * 20)
        table = before_after_table(summary, summary, change)
        assert "Accuracy" not in table
        assert "+10.000 on 20 questions: 20 better, 0 worse (paired permutation test, p = 0.0002)" in table

    def test_a_tiny_p_value_is_not_shown_as_zero(self):
        assert "p < 0.0001" in verdict(mcnemar_exact([False] * 60, [True] * 60))

    def test_one_evaluation_fits_on_a_line(self):
        line = "accuracy 25.0 % ± 2.0, flexible accuracy 50.0 % ± 2.5, mean reward 0.500 ± 0.050"
        assert score_text(BEFORE) == line
        assert score_text({"reward": 1.0, "reward_stderr": math.nan}) == "mean reward 1.000 ± nan"

    def test_the_terminal_gets_the_same_figures_without_markdown(self):
        text = before_after_text(BEFORE, AFTER, CHANGE)
        for figure in ("25.0 % ± 2.0", "75.0 % ± 2.0", "+30.0 points", "11 better, 1 worse", "p = 0.0063"):
            assert figure in text
        assert "|" not in text and "\x1b" not in text


class TestExamples:
    def test_gained_and_lost_questions_come_first_and_always_the_same(self, tmp_path):
        before, after = "0000000011", "0000001101"
        paths = saved(tmp_path, results(before), results(after).sample(frac=1, random_state=1))
        blocks = examples(*paths, k=4).split("\n\n```text")
        assert len(blocks) == 4
        assert "6 + 1?" in blocks[0] and "Before (wrong, 7 tokens)" in blocks[0] and "After (right" in blocks[0]
        assert "8 + 1?" in blocks[1] and "Before (right, 7 tokens)" in blocks[1] and "After (wrong" in blocks[1]
        assert "0 + 1?" in blocks[2] and "Gold: 1\n" in blocks[2]
        assert "7 + 1?" in blocks[3]
        assert examples(*paths, k=4) == examples(*paths, k=4)

    def test_it_shows_no_more_than_there_are(self, tmp_path):
        paths = saved(tmp_path, results("01"), results("11"))
        assert examples(*paths, k=9).count("Question:") == 2
        assert examples(*paths, k=0) == ""

    def test_without_a_gold_the_reward_is_shown(self, tmp_path):
        columns = ["correct", "answer"]
        paths = saved(tmp_path, results("01").drop(columns=columns), results("11").drop(columns=columns))
        text = examples(*paths, k=1)
        assert "Before (reward 0.000, 7 tokens)" in text and "After (reward 2.000" in text and "Gold" not in text

    def test_long_questions_and_completions_are_cut(self, tmp_path):
        asked = results("0", ["x" * 5000])
        asked["question"] = "y" * 5000
        text = examples(*saved(tmp_path, asked, results("1")), k=1)
        for letter in "xy":
            assert letter * 1200 + "…" in text and letter * 1201 not in text

    @pytest.mark.parametrize(
        "attack",
        [
            "```\n# A heading\n<script>alert(1)</script>",
            "````\n[a link](http://evil)\n````",
            "~~~\n![picture](http://evil)",
            "\x1b[2Jgone\x07\x9b31m",
            "</code></pre><img src=x onerror=alert(1)>",
            "| a | table |\n|---|---|",
        ],
    )
    def test_nothing_in_a_completion_is_rendered(self, tmp_path, attack):
        paths = saved(tmp_path, results("0", [attack]), results("1", [attack]))
        text = examples(*paths, k=1)
        assert [token.type for token in MarkdownIt().parse(text)] == ["fence"]
        assert not any((ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in text)


def shows(picture, color: str) -> bool:
    """Whether some pixels have the colour."""
    wanted = matplotlib.colors.to_rgb(color)
    return bool((abs(picture[..., :3] - wanted).max(axis=-1) < 0.02).sum() > 20)


class TestCurve:
    def test_reward_and_accuracy_are_drawn(self, tmp_path):
        source = write_metrics(tmp_path / "metrics.jsonl", steps=20)
        curve(source, tmp_path / "curve.png", before=BEFORE, after=AFTER, step=15)
        picture = matplotlib.image.imread(tmp_path / "curve.png")
        height, width, _ = picture.shape
        assert height > 700 and width > 900
        reward, accuracy = picture[: height // 2], picture[height // 2 :]
        assert shows(reward, "tab:blue") and not shows(reward, "tab:red")
        assert shows(accuracy, "tab:orange") and shows(accuracy, "tab:red") and shows(accuracy, "0.45")

    def test_without_a_gold_there_is_one_panel(self, tmp_path):
        source = write_metrics(tmp_path / "metrics.jsonl", steps=3, every=None)
        summary = {"reward": 0.5, "reward_stderr": 0.1}
        curve(source, tmp_path / "curve.png", before=summary, after=summary, step=3)
        picture = matplotlib.image.imread(tmp_path / "curve.png")
        assert picture.shape[0] < 500
        assert shows(picture, "tab:blue") and shows(picture, "tab:red") and not shows(picture, "tab:orange")


def test_sampled_completions_have_rows_of_their_own():
    sampled = {"sampled/pass_at_8": 0.5, "sampled/pass_at_8_stderr": 0.05}
    sampled |= {"sampled/best_reward": 1.25, "sampled/best_reward_stderr": 0.1}
    better = {**sampled, "sampled/pass_at_8": 0.75}
    table = before_after_table(BEFORE | sampled, AFTER | better, mcnemar_exact([False], [True]))
    assert "| Pass at 8, sampled | 50.0 % ± 5.0 | 75.0 % ± 5.0 | +25.0 points |" in table
    assert "| Best reward, sampled | 1.250 ± 0.100 | 1.250 ± 0.100 | +0.000 |" in table
    lines = score_table(BEFORE | sampled).splitlines()
    assert [line.split()[-4:] for line in lines if "Pass at 8" in line] == [["50.0", "%", "±", "5.0"]]
    assert any(line.split() == ["Mean", "reward", "0.500", "±", "0.050"] for line in lines)
    assert score_text(BEFORE | sampled) == score_text(BEFORE)


def test_the_report_holds_scores_curve_answers_and_links(runs):
    run = Run.open("reported")
    for stage in ("baseline", "train", "train", "train"):
        run.log_file(stage)
    write_metrics(run.folder / "train" / "metrics.jsonl", steps=20)
    attack = "```\n<script>alert(1)</script>\n# heading of a completion"
    before, after = saved(run.folder, results("0001"), results("1110", [attack] * 4))
    report = write_report(
        run,
        Config(),
        Outcome(
            data={"source": "made `here`", "digest": "d" * 64, "counts": {"train": 80, "test": 4}},
            trained={"step": 15, "steps": 20, "memory_changes": ["batch 8 → 4"]},
            before=BEFORE | {"results": str(before), "engine": "vllm"},
            after=AFTER | {"results": str(after), "engine": "transformers"},
        ),
        title="sums version 3: promoted",
        reason="It is better: against version 2.",
        links={"MLflow run": "http://127.0.0.1:5000/#/experiments/1/runs/2"},
    )
    text = report.read_text()
    assert report == run.folder / "report.md" and (run.folder / "curve.png").stat().st_size > 10_000
    for words in (
        "# sums version 3: promoted",
        "It is better: against version 2.",
        "| Accuracy, strict | 25.0 % ± 2.0 |",
        "![Reward and accuracy by step](curve.png)",
        "weights of step 15 were kept. Memory ran out, so it was trained with batch 8 → 4.",
        "80 train, 4 test",
        "- begun more than once: train (3 times); each attempt has its log in logs/\n",
        "`correctness` × 1",
        "- answers: written by vllm before and by transformers after, which differ in rounding",
        "http://127.0.0.1:5000/#/experiments/1/runs/2",
    ):
        assert words in text
    tokens = MarkdownIt().parse(text)
    headings = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]
    assert headings == [
        "sums version 3: promoted",
        "What was trained",
        "Answers before and after",
        "Where to look",
    ]
    assert not [token for token in tokens if token.type == "html_block"]
    assert "# heading of a completion" in text

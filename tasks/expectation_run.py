"""Runs expectations of Great Expectations on rows that come in batches, and writes its Data Docs.

Importing this takes seconds.
"""

import copy
import html
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")

import great_expectations as gx  # noqa: E402 (its setting comes first)
from great_expectations.core import ExpectationSuiteValidationResult  # noqa: E402
from great_expectations.core.run_identifier import RunIdentifier  # noqa: E402
from great_expectations.data_context.types.base import ProgressBarsConfig  # noqa: E402
from great_expectations.data_context.types.resource_identifiers import (  # noqa: E402
    ExpectationSuiteIdentifier,
    ValidationResultIdentifier,
)

from tasks.errors import UserError  # noqa: E402

# They tell of each temporary folder, and of what their pages cannot show.
logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)
logging.getLogger("great_expectations.render").setLevel(logging.CRITICAL)

# It logs a screen of tracebacks for what `check` and the results say in a sentence.
logging.getLogger("great_expectations.validator.metrics_calculator").setLevel(logging.CRITICAL)

# What a result holds of every row that fails, and what it shows of the first.
_COMPLETE = ("unexpected_list", "unexpected_index_list", "unexpected_index_query")
_FIRST = ("partial_unexpected_list", "partial_unexpected_counts", "partial_unexpected_index_list")


class Suite:
    """Expectations on the rows of one name, checked batch by batch, and what came of them together.

    A batch is a frame whose index, `source_row`, numbers the rows.
    """

    def __init__(self, name: str, expectations: Iterable[Any], most_named: int) -> None:
        self.name = name
        self.most_named = most_named
        self.total: ExpectationSuiteValidationResult | None = None
        self._suite = gx.ExpectationSuite(name, expectations=list(expectations))
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        asset = context.data_sources.add_pandas("data").add_dataframe_asset(name)
        self._batch = asset.add_batch_definition_whole_dataframe("all rows")

    def check(self, frame: pd.DataFrame) -> list[tuple[dict[str, Any], list[int]]]:
        """Check some more rows; give the configuration of each expectation that some do not meet, with these rows."""
        try:
            found = self._validated(frame, self._suite)
        except Exception as error:  # an expectation that does not suit its column raises whatever it comes upon
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise UserError(f"{self._culprit(frame)} cannot be evaluated ({reason}); correct or remove it") from error
        failed = []
        for result in found.results:
            rows = [row["source_row"] for row in result.result.get("unexpected_index_list") or []]
            if rows:
                assert result.expectation_config is not None
                failed.append((result.expectation_config.to_json_dict(), rows))
            for name in _COMPLETE:
                result.result.pop(name, None)
            result.success = bool(result.success)  # some give numpy's
        self.total = found if self.total is None else _merged(self.total, found, self.most_named)
        return failed

    def _validated(self, frame: pd.DataFrame, suite: gx.ExpectationSuite) -> ExpectationSuiteValidationResult:
        return self._batch.get_batch({"dataframe": frame}).validate(
            suite,
            result_format={
                "result_format": "COMPLETE",
                "partial_unexpected_count": self.most_named,
                "return_unexpected_index_query": False,
            },
        )

    def _culprit(self, frame: pd.DataFrame) -> str:
        """Which expectation it is that raises on `frame`: its place in the configuration, and what it says.

        Great Expectations' own error names none, so each is tried alone.
        """
        for expectation in self._suite.expectations:
            try:
                self._validated(frame, gx.ExpectationSuite(self.name, expectations=[expectation]))
            except Exception:
                place = (expectation.meta or {}).get("configured", "validation")
                return f"{place}: the expectation of {self.name} that {expectation.description}"
        return f"validation.expectations: one of {self.name}, beside the others,"

    def results(self) -> list[dict[str, Any]]:
        """Great Expectations' results over all rows so far, as JSON values."""
        assert self.total is not None, "no rows were checked"
        plain = json.dumps(self.total.to_json_dict()["results"], default=_plain)
        return list(json.loads(plain))


def _plain(value: Any) -> Any:
    """What JSON can hold of a value of numpy's, or of any other kind."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def write_docs(suites: Iterable[Suite], folder: Path) -> None:
    """Great Expectations' Data Docs of what `suites` found, a static site in `folder` that begins with index.html."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    for name in list(context.variables.data_docs_sites or {}):
        context.delete_data_docs_site(name)
    site: Any = {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)},
    }
    context.add_data_docs_site(site_name="data_docs", site_config=site)
    for suite in suites:
        key = ValidationResultIdentifier(
            expectation_suite_identifier=ExpectationSuiteIdentifier(suite.name),
            run_id=RunIdentifier(run_name="validate"),
            batch_identifier=suite.name,
        )
        context.validation_results_store.set(key, _escaped(suite.total))
    context.build_data_docs()


def _merged(
    total: ExpectationSuiteValidationResult, more: ExpectationSuiteValidationResult, most_named: int
) -> ExpectationSuiteValidationResult:
    """`total` with the results of other rows added; the order of both is that of the suite."""
    for old, new in zip(total.results, more.results, strict=True):
        assert old.expectation_config is not None and new.expectation_config is not None
        assert old.expectation_config.type == new.expectation_config.type
        if "unexpected_count" in new.result and "unexpected_count" in old.result:
            for name in ("element_count", "missing_count", "unexpected_count"):
                if name in new.result:
                    old.result[name] = old.result.get(name, 0) + new.result[name]
            for name in _FIRST:
                if name in new.result:
                    old.result[name] = [*old.result.get(name, []), *new.result[name]][:most_named]
            _set_percentages(old.result)
            mostly = old.expectation_config.kwargs.get("mostly", 1.0)
            old.success = (old.result["unexpected_percent"] or 0.0) <= 100 * (1 - mostly) + 1e-9
        elif not new.success and (old.success or "unexpected_count" not in new.result):
            # About a column as such, or not to be evaluated: in one batch that is enough, whatever the others count.
            old.result = new.result
            old.exception_info = new.exception_info
            old.success = False
    successful = sum(bool(result.success) for result in total.results)
    total.success = successful == len(total.results)
    total.statistics.update(
        successful_expectations=successful,
        unsuccessful_expectations=len(total.results) - successful,
        success_percent=100 * successful / len(total.results),
    )
    return total


def _set_percentages(result: dict[str, Any]) -> None:
    rows, missing, unexpected = result["element_count"], result.get("missing_count"), result["unexpected_count"]
    present = rows - (missing or 0)
    result["unexpected_percent"] = 100 * unexpected / present if present else None
    if missing is not None:
        result["missing_percent"] = 100 * missing / rows if rows else None
        result["unexpected_percent_total"] = 100 * unexpected / rows if rows else None
        result["unexpected_percent_nonmissing"] = result["unexpected_percent"]


def _escaped(total: ExpectationSuiteValidationResult | None) -> ExpectationSuiteValidationResult:
    """A copy that is safe to be rendered: the pages would take what stands in a row for HTML."""
    safe = copy.deepcopy(total)
    assert safe is not None
    for result in safe.results:
        result.result = _escape(result.result)
        expectation = result.expectation_config
        assert expectation is not None
        expectation.kwargs = _escape(expectation.kwargs)
        expectation.description = _escape(expectation.description)
    return safe


def _escape(value: Any) -> Any:
    match value:
        case str():
            # The dollar begins a placeholder in their templates.
            return html.escape(value).replace("$", "&#36;")
        case dict():
            return {name: _escape(inner) for name, inner in value.items()}
        case list():
            return [_escape(inner) for inner in value]
    return _escape(value.tolist()) if hasattr(value, "tolist") else value  # an array may hold texts

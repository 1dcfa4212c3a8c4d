"""Named views of MLflow's runs table: which runs, columns, order and charts answer a question.

MLflow's page keeps columns and charts in the browser, but for views that are saved with an experiment: an experiment's
tag `mlflow.sharedViewState.<key>` is in the page's menu "Views", and `?viewStateShareKey=<key>` opens it. What is
written here is what the page itself writes ("Save view", MLflow 3.17).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

TAG = "mlflow.sharedViewState."
NOTE = "mlflow.note.content"  # a description, Markdown; the page shows it on top of a run or experiment
COLOUR = "mlflow.runColor"  # of a run in all charts, "#0072B2"
RUN, EXPERIMENT = "{{run_id}}", "{{experiment_id}}"  # in a description, until it is sent: a run may have no id before
FIRST = ("methods", "tests", "trials")  # keys of the views of an experiment, the one to look at first
TRAINING = {"workflowType": "machine_learning"}  # MLflow's page for models that are trained, not the one for chats
LONGEST = 20_000  # characters of an experiment's tag
WIDTH = 130  # of a column, in pixels: enough for score/local/mean
OURS = 0  # the time at which our views are said to be made: they are the same whenever they are written


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        kind: LINE (metrics over rounds), BAR (last values), SCATTER (metrics: x and y) or PARALLEL (params, then
            metrics).
        title: what stands above it.
        metrics, params: what it shows.
    """

    kind: str
    title: str
    metrics: tuple[str, ...]
    params: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """A saved view.

    Attributes:
        key: its name in addresses. name: in the menu.
        where: which runs it shows, in MLflow's words; "": all.
        columns: (what, name) each, what being metrics, params, tags or attributes.
        order: the metric to sort by; "": the newest first. descending: the largest first.
        sections: (title, charts) each; further charts that MLflow makes of all other metrics start folded.
        folded: all metrics that the runs may have.
        group: the tag whose runs are shown as one row and one line, their mean; "": each run on its own.
    """

    key: str
    name: str
    where: str
    columns: tuple[tuple[str, str], ...]
    order: str
    descending: bool
    sections: tuple[tuple[str, tuple[Chart, ...]], ...]
    folded: tuple[str, ...] = ()
    group: str = ""

    @property
    def state(self) -> dict[str, Any]:
        """The page's own state."""
        columns = [f"{what}.`{name}`" for what, name in self.columns]
        widths = {"attributes.`Run Name`": 330, "runDateAndNestInfo": 140, "duration": 80}
        group = {"mode": "tag", "groupByData": self.group}
        charts, sections = [], []
        for number, (title, members) in enumerate(self.sections):
            section = f"{self.key}-{number}"
            sections.append(_section(section, title, display=True))
            charts += [_chart(chart, f"{section}-{i}", section) for i, chart in enumerate(members)]
        for name in sorted({_section_of(metric) for metric in self.folded}):
            sections.append(_section(f"{self.key}-{name}", name, display=False))
        return {
            "searchFilter": self.where,
            "orderByKey": f"metrics.`{self.order}`" if self.order else "attributes.start_time",
            "orderByAsc": not self.descending,
            "startTime": "ALL",
            "lifecycleFilter": "Active",
            "modelVersionFilter": "All Runs",
            "datasetsFilter": [],
            "selectedColumns": columns,
            "columnOrder": [*widths, *columns],
            "columnWidths": widths | dict.fromkeys(columns, WIDTH),
            "runsHiddenMode": "FIRST_20_RUNS",
            "compareRunCharts": charts,
            "compareRunSections": sections,
            "isAccordionReordered": True,  # else MLflow sorts the sections by name
            "hideEmptyCharts": True,
            "useGroupedValuesInCharts": True,
            "groupBy": {"aggregateFunction": "average", "groupByKeys": [group]} if self.group else None,
        }


def tags(views: Iterable[View]) -> dict[str, str]:
    """The experiment's tags that save the views; one that would be too long is left out."""
    found = {}
    for view in views:
        envelope = {"name": view.name, "createdAt": OURS, "updatedAt": OURS, "state": json.dumps(view.state)}
        text = json.dumps(envelope)
        if len(text) <= LONGEST:
            found[TAG + view.key] = text
    return found


def missing(there: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted tags that an experiment lacks; those that it has stay, but for unchanged views."""

    def ours(key: str) -> bool:
        try:
            return key.startswith(TAG) and json.loads(there[key])["updatedAt"] == OURS
        except (ValueError, KeyError, TypeError):
            return False

    return {key: value for key, value in wanted.items() if key not in there or (ours(key) and there[key] != value)}


def view_address(experiment_id: str, key: str, charts: bool = True) -> str:
    """Return the address of a saved view: the part of the address after the server's.

    Args:
        key: the view's; "": the page as it is without one. charts: beside its charts, not as a table.
    """
    query = ({"viewStateShareKey": key} if key else {}) | ({"compareRunsMode": "CHART"} if charts else {}) | TRAINING
    return f"/#/experiments/{experiment_id}/runs?{urlencode(query)}"


def artifact_address(path: str) -> str:
    """Return the address of a run's file on the page: a link for the run's own description."""
    return f"#/experiments/{EXPERIMENT}/runs/{RUN}/artifacts/{quote(path)}?{urlencode(TRAINING)}"


def run_address(experiment_id: str, run_id: str) -> str:
    """Return the address of a run's own page: the part of the address after the server's."""
    return f"/#/experiments/{experiment_id}/runs/{run_id}?{urlencode(TRAINING)}"


def _section_of(metric: str) -> str:
    """The section in which MLflow puts the chart of a metric that no view names."""
    return metric.rpartition("/")[0] or "Model metrics"


def _section(uuid: str, name: str, *, display: bool) -> dict[str, Any]:
    return {"uuid": uuid, "name": name, "display": display, "isReordered": True, "deleted": False, "isGenerated": False}


def _chart(chart: Chart, uuid: str, section: str) -> dict[str, Any]:
    shown = list(chart.metrics)
    card: dict[str, Any] = {
        "type": chart.kind,
        "uuid": uuid,
        "metricSectionId": section,
        "displayName": chart.title,
        "runsCountToCompare": 20,
        "deleted": False,
        "isGenerated": False,
    }
    if chart.kind == "SCATTER":
        x, y = shown
        return card | {"xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}
    if chart.kind == "PARALLEL":
        return card | {"selectedParams": list(chart.params), "selectedMetrics": shown, "showAllRuns": False}
    card |= {"metricKey": shown[0], "selectedMetricKeys": shown}
    if chart.kind == "LINE":
        card |= {"xAxisKey": "step", "scaleType": "linear", "xAxisScaleType": "linear", "yAxisKey": "metric"}
        card |= {"yAxisExpressions": [], "lineSmoothness": 0, "useGlobalXaxisKey": True, "range": {}}
    return card

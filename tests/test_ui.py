"""MLflow's page as people see it: a real study and real runs, in a real browser.

Screenshots go to the folder PFL_OPS_SCREENSHOTS, or beside the test's other files.
"""

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import fork_server
import pytest
from end_to_end import Tuned
from ports import reserved_port

from pfl_ops import runs
from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.settings import Execution
from pfl_ops.reports.pages.document import Document, Head, PageSection, Row, Table, TableCell
from pfl_ops.reports.pages.html import to_html
from pfl_ops.tracking import Store, newest_pages
from pfl_ops.tracking.descriptions.views import TRAINING, view_address

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE = 90  # seconds for the page to show something, on a machine that is busy
CALM = {  # the page's chat window opens by itself at the first visit
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
}
FIRST_ROW = "[role=row][row-index='0']"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1500,1500"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def missing() -> str:
    """Return what a browser test lacks here; "": nothing."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium (pip install -e '.[dev]')"
    return ", ".join(name for name in ("chromium", "chromedriver") if not shutil.which(name))


if missing():
    pytest.skip(f"the browser test needs {missing()}", allow_module_level=True)

from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import WebDriverException  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("PFL_OPS_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def compared(tuned: Tuned) -> list[runs.Result]:
    """Two methods with two seeds each, beside the study."""
    small = {"clients": 4, "rounds": 2, "evaluation.global_every": 1, "data.train_size": 300}
    with Store.open(tuned.home / "mlruns") as store:
        return [
            runs.run(
                Experiment.of(method, dataset="digits", model="linear", seed=seed, **small),
                execution=Execution(device="cpu", way="loop", threads=1),
                store=store,
            )
            for method in ("ditto", "local")
            for seed in (0, 1)
        ]


@pytest.fixture(scope="module")
def report(tuned: Tuned) -> str:
    """A report as the product writes it, kept with a run; where the page shows it."""
    cells = (TableCell("FLIU"), TableCell("97.1", 97.1, mark="best"), TableCell("96.8", 96.8))
    table = Table("table1", "Accuracy [%]", ((Head("method"), Head("ours"), Head("paper")),), (Row(cells),))
    document = Document("table1", "Table I, ours beside theirs", "a test", (PageSection("Results", (table,)),))
    with Store.open(tuned.home / "mlruns") as store, store.run("a-suite", "fliu/table1", identity="a suite") as run:
        run.tags({"pfl_ops.kind": "suite"})
        run.text(to_html(document), "report/index.html")
        return f"/#/experiments/{run.experiment_id}/runs/{run.run_id}/artifacts/report/index.html"


@pytest.fixture(scope="module")
def server(tuned: Tuned, compared: Any, report: str) -> Iterator[str]:
    """`pfl-ops ui` on a free port."""
    with reserved_port() as port:
        yield from _page(tuned, port)


def _page(tuned: Tuned, port: int) -> Iterator[str]:
    code = "from pfl_ops.cli import main; main()"
    log = tuned.home / "ui.log"
    environment = fork_server.with_children({**os.environ, "PFL_OPS_HOME": str(tuned.home / "mlruns")})
    environment.pop("MLFLOW_TRACKING_URI", None)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*fork_server.python(), "-c", code, "ui", "--port", str(port)], stdout=out, stderr=out, env=environment
        )
    try:
        address = f"http://127.0.0.1:{port}"

        def answers(_: Any) -> bool:
            assert process.poll() is None, f"the page did not start: {log.read_text()[-2000:]}"
            with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                return answer.status == 200

        WebDriverWait(None, PATIENCE, ignored_exceptions=(OSError,)).until(answers)  # type: ignore[type-var]
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0  # and MLflow's server with it


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """Return the text that the browser shows."""

    def __init__(self, driver: webdriver.Chrome, server: str, screenshots: Path) -> None:
        self.driver, self.server, self.screenshots = driver, server, screenshots
        self.wait = WebDriverWait(driver, PATIENCE, ignored_exceptions=(WebDriverException,))
        driver.get(f"{server}/health")
        for key, value in CALM.items():
            driver.execute_script("localStorage.setItem(arguments[0], arguments[1])", key, value)

    def open(self, address: str, *texts: str) -> None:
        """Go there, and wait until all texts are seen."""
        self.load(self.server + address)
        self.see(*texts)

    def load(self, address: str) -> None:
        """Go there from another page of the server: an address that differs behind the # only would not be loaded, and
        a page of another place would have another process, which compiles MLflow's programs again."""
        self.driver.get(f"{self.server}/health")
        self.driver.get(address)

    def see(self, *texts: str) -> None:
        def seen(driver: webdriver.Chrome) -> bool:
            body = driver.execute_script("return document.body.innerText")
            return all(text in body for text in texts)

        self.until(seen, f"the texts {texts}")

    def until(self, condition: Callable[[webdriver.Chrome], Any], what: str) -> Any:
        try:
            return self.wait.until(condition)
        except WebDriverException as error:
            self.shoot("failed")
            shown = self.driver.execute_script("return document.body.innerText")
            raise AssertionError(f"{what} not seen at {self.driver.current_url}:\n{shown[:3000]}") from error

    def shoot(self, name: str) -> None:
        self.driver.save_screenshot(str(self.screenshots / f"{name}.png"))

    def charts(self, number: int, marks: str) -> None:
        """Wait for charts that are drawn."""
        self.until(lambda d: len(d.find_elements("css selector", f".js-plotly-plot {marks}")) >= number, marks)


@pytest.fixture
def page(chromium: webdriver.Chrome, server: str, screenshots: Path) -> Page:
    return Page(chromium, server, screenshots)


@pytest.fixture(scope="module")
def study(tuned: Tuned) -> Any:
    (parent,) = [run for run in tuned.runs if run.data.tags["pfl_ops.kind"] == "study"]
    return parent


def test_a_study_and_what_belongs_to_it(page: Page, tuned: Tuned, study: Any) -> None:
    """The table has a row for the study, which opens to its trials and tests; their scores share columns."""
    children = ["000 fliu ", "001 fliu ", "002 fliu ", "final-seed0"]
    page.open(view_address(study.info.experiment_id, "study", charts=False), "Study", "study", "score/acc", "Tuning of")
    assert not any(child in page.driver.execute_script("return document.body.innerText") for child in children)
    expander = f"{FIRST_ROW} [col-id*='Run Name'] button"
    page.until(lambda d: d.find_element("css selector", expander).click() or True, "the sign that opens the study")
    page.see(*children, f"{study.data.metrics['val/L1/acc']:.5f}"[:-1])
    page.shoot("study")


def test_which_trial_is_best(page: Page, tuned: Tuned, study: Any) -> None:
    """The address that `tune` prints leads to its trials, with what was varied; bars and curves are drawn."""
    told = tuned.output.partition("http://127.0.0.1:5000")[2].split()[0]
    assert told == f"/study/{study.data.tags['pfl_ops.study']}"
    page.open(told, "Trials", "Which trial is best", "000 fliu ", "001 fliu ", "002 fliu ")
    address = view_address(study.info.experiment_id, "trials")
    assert page.driver.current_url.startswith(page.server + address.partition("&workflowType")[0])
    page.charts(3, ".barlayer .point")
    page.charts(3, ".scatterlayer .trace .lines, .scatterlayer .trace path.js-line")
    page.shoot("trials")
    page.open(address.replace("compareRunsMode=CHART&", ""), "algorithm.gamma.kind", "pfl_ops.chosen")
    best = max(tuned.of_kind("trial"), key=lambda run: run.data.metrics["val/L1/acc"])
    first = page.until(lambda d: d.find_element("css selector", f"{FIRST_ROW} a").text, "the first row")
    assert first == best.info.run_name
    assert study.data.tags["pfl_ops.best_trial"] == f"trial-{first.split()[0]}"
    page.shoot("trials-table")


def test_which_method_is_best(page: Page, tuned: Tuned, compared: list[runs.Result]) -> None:
    """Runs that differ in their seed only are one row, one bar and one line: their mean."""
    assert compared[0].page
    page.open(
        "/experiment/digits-lsqs", "Methods", "Which method is best?", "Group: ditto", "Group: local", "Runs on digits"
    )
    page.charts(2, ".barlayer .point")
    for method in (compared[:2], compared[2:]):
        mean = sum(result.final["final/test/L1/acc"] for result in method) / 2
        page.see(f"{mean:.2f}")
    page.shoot("methods")
    pages = dict(newest_pages(str(tuned.home / "mlruns")))
    assert pages["digits-lsqs"] == "/experiment/digits-lsqs"
    assert f"{page.server}/experiment/digits-lsqs" in (tuned.home / "ui.log").read_text()


def test_runs_beside_one_another(page: Page, tuned: Tuned, compared: list[runs.Result]) -> None:
    ids = [str(result.run_id) for result in compared]
    experiment = tuned.client.get_run(ids[0]).info.experiment_id
    names = [tuned.client.get_run(run_id).info.run_name for run_id in ids]
    query = {"runs": json.dumps(ids), "experiments": json.dumps([experiment]), **TRAINING}
    page.open(f"/#/compare-runs?{urlencode(query)}", "Comparing 4 Runs", "algorithm.name", *names)
    page.shoot("compare")


def test_the_partition_and_the_data(page: Page, tuned: Tuned) -> None:
    (final,) = tuned.of_kind("final")
    run = f"/#/experiments/{final.info.experiment_id}/runs/{final.info.run_id}"
    page.open(f"{run}/artifacts/figures/partition.png", "partition.png", "clients.parquet", "config.yaml", "models")
    drawn = "return [...document.images].some(image => image.complete && image.naturalWidth > 400)"
    page.until(lambda d: d.execute_script(drawn), "the picture of the partition")
    page.shoot("partition")
    page.open(run, "final-seed0", "digits (", "pfl_ops.partition_hash"[:5])


def test_a_run_leads_to_its_pictures_and_to_other_runs(page: Page, compared: list[runs.Result]) -> None:
    """The description is Markdown, and its links open another window."""
    page.open(f"/run/{compared[0].run_id}", "ditto", "Accuracy over rounds", "Compared with other runs")
    page.see("test/L1/acc", "train/loss")
    page.shoot("run")
    # the curves that matter are the first rows; MLflow would have "best/round" first if it sorted
    rows = page.driver.execute_script("return document.body.innerText").partition("Metrics (")[2]
    order = [
        rows.find(f"\n{key}") for key in ("test/L1/local/mean", "test/L1/global/mean", "test/L1/acc", "train/loss")
    ]
    assert 0 < order[0] < order[1] < order[2] < order[3] < 300
    links = {link.text: link.get_attribute("href") for link in page.driver.find_elements("css selector", "a[href]")}
    page.load(links["Accuracy over rounds"])
    page.see("accuracy.png")
    drawn = "return [...document.images].some(image => image.complete && image.naturalWidth > 400)"
    page.until(lambda d: d.execute_script(drawn), "the picture of the accuracy")
    page.shoot("accuracy")
    page.load(links["Compared with other runs"])
    page.see("Which method is best?")


def test_a_study_s_description_leads_to_its_charts(page: Page, study: Any) -> None:
    page.open(f"/run/{study.info.run_id}", "charts of its trials", "Chosen: trial ")
    href = page.driver.find_element("link text", "charts of its trials").get_attribute("href")
    page.load(href)
    page.see("Which trial is best", "000 fliu ")
    page.charts(3, ".barlayer .point")


def test_a_report(page: Page, report: str) -> None:
    """HTML is shown in a frame that may run no scripts: text, style and all must be in the one file."""
    page.open(report, "report/index.html")
    frame = page.until(lambda d: d.find_element("css selector", "iframe"), "the report's frame")
    page.driver.switch_to.frame(frame)
    try:
        page.see("Table I, ours beside theirs", "97.1")
        font = "return getComputedStyle(document.body).fontFamily"
        assert "Times" not in page.driver.execute_script(font)  # its own style, not the browser's
    finally:
        page.driver.switch_to.default_content()
    page.shoot("report")

"""MLflow's server with short addresses in front: what `pfl-ops ui` starts.

MLflow finds this module by the entry point `mlflow.app` in `mlflow_app/`, which `ui_command` puts on the server's path.
"""

import os

from mlflow import MlflowClient
from mlflow.server.fastapi_app import app
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from pfl_ops.errors import echo
from pfl_ops.tracking.page.short import KINDS, find_page


async def redirect(request: Request) -> Response:
    """Lead from a short address to the page; 404 in words if nothing has that name."""
    kind, name = request.url.path.split("/")[1], request.path_params["name"]
    client = MlflowClient(os.environ["MLFLOW_BACKEND_STORE_URI"])
    found = await run_in_threadpool(find_page, client, kind, name)
    if found is None:
        return PlainTextResponse(f"there is no {kind} '{echo(name)}' here; all that there is: /\n", 404)
    return RedirectResponse(found)


# First, for MLflow's own route takes every address; its checks of the host still come before.
app.router.routes[:0] = [Route(f"/{kind}/{{name:path}}", redirect) for kind in KINDS]

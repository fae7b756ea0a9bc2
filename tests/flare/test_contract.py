"""Exactly the names of NVIDIA FLARE that interlace uses, and what it relies on of each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.collab import collab
from nvflare.collab.api.context import Context, get_call_context, set_call_context
from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.proto import MetaStatusValue
from nvflare.private.fed.server.server_json_config import ServerJsonConfigurator

from interlace.engines import flare
from interlace.sites import provision, submission
from interlace.sites.contract import Contract


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (CoreCell.send_request, ["channel", "topic", "target", "request", "timeout"]),
        (CoreCell.register_request_cb, ["channel", "topic", "cb"]),
        (new_cell_message, ["headers", "payload"]),
        (CollabController.__init__, ["server_obj_id", "sync_task_timeout"]),
        (CollabExecutor.__init__, ["client_obj_id"]),
        (Workspace.get_app_dir, ["job_id"]),
        (Context.is_aborted, []),
        (get_call_context, []),
        (set_call_context, ["ctx"]),
        (new_secure_session, ["username", "startup_kit_location", "timeout"]),
        (Session.submit_job, ["job_definition_path"]),
        (Session.get_job_meta, ["job_id"]),
        (Session.abort_job, ["job_id"]),
        (Session.get_system_info, []),
        (Session.get_client_job_status, []),
        (Session.close, []),
    ],
)
def test_functions_take_what_we_give(function: Callable[..., Any], arguments: list[str]) -> None:
    taken = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    names = [p.name for p in taken]
    assert set(arguments) <= set(names)
    assert all(p.name in arguments or p.default is not p.empty or p.kind in (2, 4) for p in taken)


def test_constants_are_what_goes_over_the_wire() -> None:
    assert (MessageHeaderKey.RETURN_CODE, MessageHeaderKey.ORIGIN) == (
        "cn__return_code",
        "cn__origin",
    )
    assert (ReturnCode.OK, ReturnCode.UNAUTHENTICATED) == ("ok", "unauthenticated")
    assert FQCN.join(["lab", "job"]) == "lab.job"
    assert FLContextKey.WORKSPACE_OBJECT
    assert JobMetaKey.STATUS.value == "status"
    assert (MetaStatusValue.NO_REPLY, MetaStatusValue.ERROR) == ("no_reply", "error")
    assert RunStatus.RUNNING.value == "RUNNING"
    assert RunStatus.FINISHED_ABORTED.value == "FINISHED:ABORTED"
    assert RunStatus.FINISHED_COMPLETED.value.startswith("FINISHED")


def test_collab_offers_what_a_site_and_the_hub_use() -> None:
    for name in ("init", "publish", "main", "final", "get_clients"):
        assert callable(getattr(collab, name))
    for name in ("caller", "context", "fl_ctx"):
        assert hasattr(inspect.getattr_static(collab, name), "__get__")


@pytest.mark.parametrize("path", provision.CLASSES)
def test_a_job_names_classes_that_are_there(path: str) -> None:
    module, name = path.rsplit(".", 1)
    assert inspect.isclass(getattr(import_module(module), name))


@pytest.mark.parametrize(
    "path",
    [
        "interlace.sites.job.Party",  # its table can be a query, which may copy any file
        "interlace.sites.service.down",
        "nvflare.collab.runtime.executor.optional_import",
    ],
)
def test_a_job_calls_nothing_else_of_the_modules_that_it_names(path: str) -> None:
    assert callable(getattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2]))
    allows = ComponentPathAuthorizer._path_matches_prefix
    assert not any(allows(path, allowed) for allowed in provision.CLASSES)


def test_a_job_of_ours_names_exactly_what_sites_allow(tmp_path: Path) -> None:
    contract = Contract(name="small", parties=["bank", "shop"], active="bank")
    submission.write_job(contract, tmp_path)
    text = "".join(f.read_text() for f in tmp_path.glob("*/config/config_*.json"))
    assert set(re.findall(r'"path": "([^"]+)"', text)) == set(provision.CLASSES)
    assert '"server": {\n  "task_request_interval": 1.0\n' in text
    assert '"server.task_request_interval"' in inspect.getsource(ServerJsonConfigurator)


def test_a_release_without_a_core_cell_gets_collab_calls() -> None:
    assert "core_cell" in inspect.getsource(Cell)
    assert flare.core_of(object()) is None

    class Changed:
        core_cell = object()

    assert flare.core_of(Changed()) is None

    class Proxy:
        def receive(self, frame: bytes) -> bytes:
            return frame[::-1]

    carry = flare.carry_by_calls(lambda _name, _seconds: Proxy(), lambda: False)
    assert carry("lab", b"abc", 1.0) == b"cba"

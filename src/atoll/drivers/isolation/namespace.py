"""Processes in a capsule's own view: the project at its own path, a private HOME and TMPDIR.

No isolation: everything that the user can access can be accessed from inside, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from atoll.drivers.contracts import IsolationRequest
from atoll.drivers.isolation.process import ScrubbedProcess, render_git_config
from atoll.host import files
from atoll.model.enclosure import Enclosure
from atoll.model.plan import IsolationPlan


class NamespaceProcess(ScrubbedProcess):
    name = "namespace"

    def plan(self, request: IsolationRequest) -> IsolationPlan:
        plan = super().plan(request)
        return plan._replace(
            private=request.private,
            holder=request.directory,
            tools=request.tools,
        )

    def apply(self, plan: IsolationPlan) -> None:
        path = "home/.gitconfig"
        # Without waiting for the disk: what a power cut takes is written again at next use.
        if not files.read_beneath(Path(plan.seed), path, limit_bytes=1 << 24):
            files.write_beneath(Path(plan.seed), path, render_git_config(plan).encode())

    def release(self, plan: IsolationPlan, *, home: Path) -> None:
        # The private places are part of the workspace's upper layer, and go with it.
        del plan, home

    def enclosure(self, plan: IsolationPlan, owner: Mapping[str, str]) -> Enclosure:
        inside = super().enclosure(plan, owner)
        if plan.tools:
            inside = inside.adding({"PATH": f"{plan.tools}:{inside.env['PATH']}"})
        return inside._replace(holder=plan.holder)

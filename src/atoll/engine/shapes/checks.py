"""Fills in the shapes of checks, trials and bisections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.engine.shapes.capsules import ended_run, run, snapshot

if TYPE_CHECKING:
    from atoll.engine.check.bisection import BisectReport
    from atoll.engine.check.capsule_checks import CheckReport
    from atoll.engine.check.trials import TrialReport
    from atoll.engine.network.egress_log import EgressAttempt
    from atoll.engine.run.captured_output import Captured
    from atoll.model.check import CheckResult, Figure
    from atoll.model.shapes import (
        BisectShape,
        CheckReportShape,
        CheckResultShape,
        FigureShape,
        TrialShape,
    )


def figure(record: Figure) -> FigureShape:
    return {
        "name": record.name,
        "value": record.value,
        "unit": record.unit,
        "better": record.better or None,
    }


def check_result(record: CheckResult) -> CheckResultShape:
    tests = record.tests
    return {
        "id": record.id or None,
        "check": record.name,
        "command": record.command,
        "digest": record.digest,
        "status": str(record.status),
        "passed": record.passed,
        "known": record.is_known,
        "tree": record.tree or None,
        "commit": record.commit or None,
        "at": record.at,
        "took_s": round(record.took_s, 3),
        "exit_code": record.exit_code,
        "attempts": record.attempts,
        "figures": [figure(one) for one in record.figures],
        "tests": None
        if tests is None
        else {
            "passed": tests.passed,
            "failed": tests.failed,
            "skipped": tests.skipped,
            "names": list(tests.names),
            "failures": list(tests.failures),
        },
        "warnings": record.warnings,
        "message": record.message,
        "output": record.output,
        "log": record.log or None,
    }


def check_report(record: CheckReport) -> CheckReportShape:
    return {
        "capsule": record.capsule,
        "commit": record.commit or None,
        "tree": record.tree or None,
        "here": record.is_here,
        "passed": record.passed,
        "detected": record.is_detected,
        "uncommitted": record.has_uncommitted,
        "checks": [check_result(one) for one in record.results],
    }


def trial(
    name: str, record: TrialReport, output: Captured, refused: list[EgressAttempt]
) -> TrialShape:
    return {
        "capsule": name,
        "kept": record.kept,
        "before": snapshot(record.before),
        "attempt": None if record.attempt is None else snapshot(record.attempt),
        "run": ended_run(record.run, output, refused),
        "checks": None if record.checks is None else check_report(record.checks),
    }


def bisection(name: str, record: BisectReport) -> BisectShape:
    return {
        "capsule": name,
        "check": record.check,
        "state": str(record.state),
        "points": record.points,
        "tried": [
            {
                "snapshot": snapshot(one.point.snapshot),
                "verdict": str(one.verdict),
                "message": one.message,
            }
            for one in record.tried
        ],
        "good": None if record.good is None else snapshot(record.good),
        "bad": None if record.bad is None else snapshot(record.bad),
        "between": [snapshot(one) for one in record.between],
        "runs": [run(one) for one in record.runs],
    }

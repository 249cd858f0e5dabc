"""Fills in the shapes of races and what came of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.engine.shapes.checks import check_result, figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.engine.demo import Demo
    from atoll.engine.race.evidence.candidate_diffs import BoundedPatch
    from atoll.engine.race.report import CandidateStatus, RaceStatus
    from atoll.engine.race.results import Grafted, Picked
    from atoll.engine.race.unattended import UnattendedEnd
    from atoll.model.check import CheckResult, CheckSpec
    from atoll.model.evidence import CandidateEvidence, Cell, Judgement, Matrix, RaceEvidence
    from atoll.model.shapes import (
        CandidateDiffShape,
        CandidateEvidenceShape,
        CandidateShape,
        ComparisonShape,
        DemoShape,
        GraftShape,
        JudgementShape,
        MatrixCellShape,
        MatrixShape,
        ObservedCheckShape,
        PickedShape,
        RacePromotionShape,
        RaceShape,
    )


def demo(record: Demo, compared: ComparisonShape) -> DemoShape:
    return {
        "comparison": compared,
        "promises": [{"text": one.text, "kept": one.is_kept} for one in record.promises],
        "as_promised": record.is_as_promised,
        "took_s": round(record.took_s, 3),
    }


def observed_checks(
    specs: Sequence[CheckSpec], results: Sequence[CheckResult | None]
) -> list[ObservedCheckShape]:
    return [
        {
            "name": spec.name,
            "status": None if found is None else str(found.status),
            "message": "" if found is None else found.message,
            "took_s": None if found is None else found.took_s,
            "tests_passed": None if found is None or found.tests is None else found.tests.passed,
            "tests_failed": None if found is None or found.tests is None else found.tests.failed,
            "tests_skipped": None if found is None or found.tests is None else found.tests.skipped,
        }
        for spec, found in zip(specs, results, strict=True)
    ]


def candidate_evidence(
    record: CandidateEvidence, specs: Sequence[CheckSpec]
) -> CandidateEvidenceShape:
    one, changes, cross = record.candidate, record.changes, record.cross
    return {
        "name": one.name,
        "position": one.position,
        "state": str(one.state),
        "reason": one.reason,
        "agent": one.spec.agent,
        "model": one.spec.model,
        "graft": list(one.spec.graft),
        "commit": one.commit or None,
        "tree": one.tree or None,
        "same_tree": list(record.twins),
        "checks": observed_checks(specs, record.checks),
        "figures": {name: figure(found) for name, found in record.figures.items()},
        "base_tests": str(record.base_tests.status),
        "crosstests": None if cross is None else {"passed": cross.passed, "ran": cross.ran},
        "files": [
            {
                "path": file.path,
                "status": file.status,
                "added": file.added,
                "deleted": file.deleted,
                "binary": file.is_binary,
            }
            for file in changes.files
        ],
        "lines_added": changes.added,
        "lines_deleted": changes.deleted,
        "changed_tests": list(changes.changed_tests),
        "deleted_tests": changes.tests_gone,
        "deleted_test_files": list(changes.deleted_test_files),
        "skipped_tests": changes.skipped_tests,
        "assertions_removed": changes.assertions_removed,
        "dependencies": list(changes.dependencies),
        "locks": list(changes.locks),
        "risky": list(changes.risky),
        "new_warnings": record.warnings,
        "took_s": record.took_s,
        "tokens": one.tokens,
        "cost_usd": one.cost_usd,
        "judged": record.judged,
        "undecided": record.is_undecided,
        "obstacle": record.obstacle or None,
        "removed": one.is_removed,
    }


def comparison(record: RaceEvidence) -> ComparisonShape:
    race, specs = record.race, record.race.spec.checks
    return {
        "race": race.name,
        "task": race.spec.task,
        "state": str(race.state),
        "created_at": race.created_at,
        "winner": race.winner,
        "rule": race.spec.rule,
        "base": {
            "commit": race.base_commit,
            "tree": record.base_tree,
            "checks": observed_checks(specs, record.base_checks),
            "figures": {name: figure(found) for name, found in record.base_figures.items()},
            "passes": record.matrix.does_base_pass,
        },
        "candidates": [candidate_evidence(one, specs) for one in record.candidates],
        "matrix": matrix(record.matrix),
        "judgement": None if record.judgement is None else judgement(record.judgement),
        "notes": list(record.notes),
    }


def matrix(record: Matrix) -> MatrixShape:
    return {
        "columns": [{"tree": one.tree, "names": list(one.names)} for one in record.columns],
        "rows": [
            {
                "names": list(row.names),
                "files": list(row.files),
                "counts": row.counts,
                "cells": [matrix_cell(cell) for cell in row.cells],
            }
            for row in record.rows
        ],
    }


def matrix_cell(record: Cell) -> MatrixCellShape:
    return {
        "status": str(record.status),
        "tree": record.tree or None,
        "tests_passed": record.passed,
        "tests_failed": record.failed,
        "reason": record.reason,
    }


def judgement(record: Judgement) -> JudgementShape:
    return {
        "command": record.command,
        "at": record.at,
        "ranks": dict(record.ranks),
        "undecided": list(record.undecided),
    }


def candidate_diff(record: BoundedPatch) -> CandidateDiffShape:
    return {"diff": record.text.decode(errors="replace"), "complete": record.is_complete}


def picked(record: Picked, discarded: Sequence[str]) -> PickedShape:
    choice, found = record.choice, record.evidence.judgement
    return {
        "race": record.evidence.race.name,
        "winner": choice.winner,
        "reason": choice.reason,
        "by_hand": record.by_hand,
        "obstacle": record.obstacle or None,
        "rule": choice.rule,
        "runner_up": choice.runner_up,
        "ranking": list(choice.ranking),
        "rejected": [{"name": name, "reason": why} for name, why in choice.rejected.items()],
        "judgement": None if found is None else judgement(found),
        "discarded": list(discarded),
    }


def graft(record: Grafted) -> GraftShape:
    one = record.candidate
    return {
        "race": record.race.name,
        "name": one.name,
        "parts": list(one.spec.graft),
        "branch": record.branch,
        "commit": one.commit,
        "tree": one.tree,
        "checks": observed_checks(record.race.spec.checks, record.checks),
    }


def race(record: RaceStatus) -> RaceShape:
    one, spec = record.race, record.race.spec
    return {
        "name": one.name,
        "task": spec.task,
        "state": str(one.state),
        "carried_on": record.is_carried_on,
        "good": record.is_good,
        "winner": one.winner,
        "base_ref": spec.base_ref,
        "base_commit": one.base_commit,
        "created_at": one.created_at,
        "ended_at": one.ended_at,
        "check_names": [check.name for check in spec.checks],
        "base_checks": [check_result(result) for result in record.base],
        "candidates": [candidate(found, record) for found in record.candidates],
        "promotion": None if record.promotion is None else race_promotion(record.promotion),
    }


def race_promotion(record: UnattendedEnd) -> RacePromotionShape:
    return {
        "stage": record.stage,
        "winner": record.winner,
        "good": record.is_good,
        "message": record.message,
    }


def candidate(record: CandidateStatus, of: RaceStatus) -> CandidateShape:
    one = record.candidate
    return {
        "name": one.name,
        "position": one.position,
        "state": str(one.state),
        "reason": one.reason,
        "agent": one.spec.agent or None,
        "command": list(one.spec.argv),
        "prompt": one.spec.prompt,
        "model": one.spec.model,
        "variables": one.spec.env,
        "graft": list(one.spec.graft),
        "attempts": one.attempts,
        "run": f"{one.name}.{one.run}" if one.run else None,
        "exit_code": one.exit_code,
        "started_at": one.started_at,
        "ended_at": one.ended_at,
        "took_s": record.took_s,
        "commit": one.commit or None,
        "tree": one.tree or None,
        "changed_files": one.files,
        "added_lines": one.added,
        "removed_lines": one.removed,
        "tokens": one.tokens,
        "cost_usd": one.cost_usd,
        "capsule": record.has_capsule,
        "checks": [check_result(result) for result in record.checks],
        "passed": record.passes(of.race.spec.checks),
    }

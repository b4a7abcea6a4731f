"""Whether something holds in every cell of a benchmark, and where it does not."""

SHOWN = 3  # worst cells that are named; where more fail, all of those


def cell_verdict(rows: list[dict], key: str, limit: float, *, at_least: bool) -> dict:
    """In how many cells the row's `key` keeps to `limit`, the worst first."""
    rows = sorted(rows, key=lambda row: row[key], reverse=not at_least)
    failed = sum(row[key] < limit if at_least else row[key] > limit for row in rows)
    return {
        "limit": limit,
        "cells": len(rows),
        "hold": len(rows) - failed,
        "holds": not failed,
        "worst": rows[: max(SHOWN, failed)],
    }

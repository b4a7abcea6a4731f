"""The house keeps its order: imports point down the list of rooms, files and functions stay small."""

import ast
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "foredraft"
ROOMS = [
    "cli",
    "serving",
    "evaluation",
    "training",
    "interop",
    "engine",
    "drafters",
    "checkpoints",
    "heads",
    "verification",
    "sampling",
    "model",
    "core",
]
FILES = sorted(SOURCE.rglob("*.py"))
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
P90_FUNCTION_LINES = 35


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def imported_modules(module: ast.Module) -> list[str]:
    """Every foredraft module that `module` names in an import, relative ones by their dots."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
    return [name for name in found if name.split(".")[0] in ("foredraft", "")]


def wrong_imports(module: ast.Module, room: str) -> list[str]:
    """Imports of `module` that point up from `room`, at no room, or are relative."""
    allowed = {*ROOMS[ROOMS.index(room) :], "__version__"}
    return [name for name in imported_modules(module) if f"{name}.".split(".")[1] not in allowed]


def function_lengths(path: Path) -> dict[str, int]:
    functions = (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {f"{named(path)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1 for node in functions}


def test_every_folder_with_code_is_a_room():
    folders = {path.relative_to(SOURCE).parts[0] for path in FILES if path.parent != SOURCE}
    assert folders and folders <= set(ROOMS)


@pytest.mark.parametrize("path", [path for path in FILES if path.parent != SOURCE], ids=named)
def test_imports_point_down_the_house(path):
    assert wrong_imports(tree(path), path.relative_to(SOURCE).parts[0]) == []


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("from foredraft.engine.engine import Engine", True),
        ("import foredraft.cli.main", True),
        ("from ..model import target", True),
        ("from foredraft import Engine", True),
        ("import foredraft", True),
        ("def f():\n    from foredraft.drafters.drafter import Drafter", True),
        ("import torch\nfrom foredraft.core.errors import UserError\nfrom foredraft.sampling.bans import x", False),
    ],
)
def test_the_check_of_imports_sees_them(code, wrong):
    assert bool(wrong_imports(ast.parse(code), "sampling")) is wrong


def test_files_stay_small():
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_functions_stay_small():
    lengths = dict(chain.from_iterable(function_lengths(path).items() for path in FILES))
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}
    assert sorted(lengths.values())[len(lengths) * 9 // 10] < P90_FUNCTION_LINES


def drafter_checks(module: ast.Module) -> list[str]:
    """Places that ask which drafter or method something is, where the protocol should have answered."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            found += [ast.unparse(node)] if "Drafter" in ast.unparse(node.args[1]) else []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = {getattr(side, "attr", getattr(side, "id", "")) for side in sides}
            found += [ast.unparse(node)] if named & {"method", "drafter_name"} else []
        if isinstance(node, ast.Match) and getattr(node.subject, "attr", getattr(node.subject, "id", "")) == "method":
            found.append(ast.unparse(node.subject))
    return found


def test_the_engine_does_not_ask_which_drafter_it_has():
    files = sorted((SOURCE / "engine").glob("*.py"))
    assert files
    assert {named(path): drafter_checks(tree(path)) for path in files if drafter_checks(tree(path))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(drafter, NgramDrafter)",
        "config.method == 'ngram'",
        "method in ('ngram', 'suffix')",
        "match config.method:\n    case 'ngram': pass",
    ],
)
def test_the_check_of_the_engine_sees_it(code):
    assert drafter_checks(ast.parse(code))

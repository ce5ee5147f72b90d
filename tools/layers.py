#!/usr/bin/env python3
"""Check the shape of a package: layers, load cycles, sizes. One line per breach, exit 1 if there is any.

    python tools/layers.py celery_resilience layers.txt

Nothing is imported, only parsed. An import is hard (runs at load), late (inside a function) or typing (below
`if TYPE_CHECKING:`). The contract holds for all three, because a reader follows all three; cycles are of hard ones.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 40
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Layer:
    name: str
    is_strict: bool  # no imports even inside the layer
    members: tuple[str, ...]

    def holds(self, module: str) -> bool:
        """Say whether a module (without the package's name; "." is its front door) belongs here."""
        return any(m == module or (m[-1] == "*" and f"{module}.".startswith(f"{m[:-1]}.")) for m in self.members)


@dataclass
class Module:
    name: str
    path: Path
    lines: int
    functions: list[tuple[str, int, int]]  # name, first line, lines without docstring
    imports: dict[str, set[str]] = field(default_factory=lambda: {"hard": set(), "late": set(), "typing": set()})


def read_contract(path: Path) -> list[Layer]:
    """Read `name: module module*` lines, the top layer first; `name!` forbids imports inside that layer."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    split = (line.partition(":") for line in lines if line)
    return [Layer(name.strip("! "), name.strip().endswith("!"), tuple(members.split())) for name, _, members in split]


def read_package(package: Path) -> dict[str, Module]:
    """Parse every module of a package; keys are dotted names without the package's own, "." is its `__init__`."""
    paths = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "."] = path
    return {name: read_module(name, path, package.name, set(paths)) for name, path in paths.items()}


def read_module(name: str, path: Path, root: str, known: set[str]) -> Module:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, filename=str(path))
    module = Module(name, path, len(source.splitlines()), list(measure_functions(tree)))
    dotted = [root, *(() if name == "." else name.split("."))]
    here = dotted if path.name == "__init__.py" else dotted[:-1]
    for kind, node in walk_imports([tree], "hard"):
        module.imports[kind] |= {inner(target, known) for target in targets(node, here) if target[0] == root} - {name}
    return module


def walk_imports(nodes: Iterable[ast.AST], kind: str) -> Iterator[tuple[str, ast.Import | ast.ImportFrom]]:
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield kind, node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from walk_imports(node.body, "typing")
            yield from walk_imports(node.orelse, kind)
        else:
            yield from walk_imports(ast.iter_child_nodes(node), "late" if isinstance(node, FUNCTIONS) else kind)


def targets(node: ast.Import | ast.ImportFrom, here: list[str]) -> list[list[str]]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".") for alias in node.names]
    base = here[: len(here) - node.level + 1] if node.level else []
    return [[*base, *(node.module or "").split("."), alias.name] for alias in node.names]


def inner(target: list[str], known: set[str]) -> str:
    """Name the module inside the package; of something defined in a module, that module."""
    names = [".".join(filter(None, target[1:end])) for end in range(len(target), 1, -1)]
    return next((name for name in names if name in known), ".")


def measure_functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    for node in ast.iter_child_nodes(tree):
        inside = f"{prefix}{node.name}." if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else prefix
        if isinstance(node, FUNCTIONS):
            said = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            docstring = (said.end_lineno or 0) - said.lineno + 1 if said else 0
            yield inside[:-1], node.lineno, (node.end_lineno or 0) - node.lineno + 1 - docstring
        yield from measure_functions(node, inside)


def contract_breaches(modules: dict[str, Module], contract: list[Layer]) -> Iterator[str]:
    place = {name: next((i for i, layer in enumerate(contract) if layer.holds(name)), None) for name in modules}
    for name, module in modules.items():
        here = place[name]
        if here is None:
            yield f"{module.path}: in no layer of the contract"
            continue
        for kind, others in module.imports.items():
            for other in sorted(others):
                there = place[other]
                if there is not None and (there < here or (there == here and contract[here].is_strict)):
                    names = f"{contract[here].name} must not import {other} of {contract[there].name}"
                    yield f"{module.path}: {names} ({kind})"


def other_breaches(modules: dict[str, Module]) -> Iterator[str]:
    for module in modules.values():
        if module.lines > MAX_MODULE_LINES:
            yield f"{module.path}: {module.lines} lines, at most {MAX_MODULE_LINES}"
        for name, line, lines in module.functions:
            if lines > MAX_FUNCTION_LINES:
                yield f"{module.path}:{line}: {name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
    reach = {name: reachable(name, modules) for name in modules}
    rings = {frozenset(o for o in reach[name] if name in reach[o]) for name in modules if name in reach[name]}
    yield from (f"load cycle: {' <-> '.join(sorted(ring))}" for ring in sorted(rings, key=sorted))


def reachable(start: str, modules: dict[str, Module]) -> set[str]:
    seen: set[str] = set()
    waiting = {start}
    while waiting:
        waiting |= (fresh := modules[waiting.pop()].imports["hard"] - seen)
        seen |= fresh
    return seen


def main(package: str, contract: str) -> int:
    modules = read_package(Path(package))
    found = [*contract_breaches(modules, read_contract(Path(contract))), *other_breaches(modules)]
    print("\n".join(found) or f"layers: {len(modules)} modules keep the contract")
    return int(bool(found) or not modules)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

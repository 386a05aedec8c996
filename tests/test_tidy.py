"""What can be checked by a machine is not discussed: sizes, names, banned calls, the mirror, dead modules.

Lists of exceptions name each offender and may only shrink: `test_exceptions_are_still_needed` sees to that.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.sources import (
    PRODUCT_FOLDERS,
    PYTHON_FOLDERS,
    REPOSITORY,
    Module,
    functions,
    imported_names,
    modules,
    text_files,
)

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 400
BANNED_MODULE_NAMES = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "base",
    "manager",
    "misc",
    "core",
    "lib",
}

LONG_FUNCTIONS: dict[str, int] = {}
"""`path:function` -> lines it may have, at most."""

LONG_MODULES: dict[str, int] = {}

WITHOUT_TEST_FILE: dict[str, str] = {
    "app/__main__.py": "tests/live: every child of a serving process is started by it",
    "ingest/log/kafka_copy.py": "tests/live/test_kafka_copy.py, on a real broker's transactions",
    "ingest/discovery/etcd3_adapter.py": "tests/live/etcd3_cases.py, in the library's own environment",
    "projections/bounds.py": "asserts its relations at import; each bound where it bounds",
    "projections/events/signals.py": "values; tests/projections/events/test_codec.py",
}
"""Module path -> where it is tested instead."""

WITHOUT_ASSERTION = {
    "tests/app/test_process_log.py:test_a_stderr_that_is_gone_costs_the_line_and_nothing_else": "it raises",
    "tests/ingest/log/test_segment_log.py:test_the_lock_is_free_again_after_close": "a held lock raises",
    "tests/log_suite.py:test_waiting_for_what_is_there_returns_at_once": "it returns, or the test hangs",
}
"""`path:function` of tests that assert nothing in words, and what fails them."""

SLEEPERS = {"tests/deploy/demo/test_children.py": "waits for real processes"}
"""Test files outside `tests/live` that may sleep."""

ENTRY_POINTS = {
    "app.__main__": "python -m app",
}
"""Modules that nobody imports, and who runs them."""

DOORS = {
    "grpc": ("ingest/discovery/etcd_", "ingest/discovery/etcd3_"),
    "google.protobuf": ("ingest/discovery/etcd_",),
    "etcd3": ("ingest/discovery/etcd3_",),
    "aiokafka": ("ingest/log/kafka_",),
    "faust": ("app/stream.py",),
    "yaml": ("app/config_",),
    "typer": ("app/",),
    "rich": ("app/",),
    "pydantic": ("app/config_",),
    "prometheus_client": ("app/",),
    "cryptography": ("app/capture_signature",),
    "jinja2": ("router/prompt/chat_template",),
    "minijinja": ("router/prompt/chat_template", "router/prompt/chat_beginnings"),
    "tokenizers": ("router/prompt/segment_encoder",),
}
"""Foreign library -> beginnings of the paths that may import it."""

BANNED_IN_PURE = {
    "hash": "differs from process to process; use an explicit digest",
    "id": "is an address; compare values",
    "open": "no files here",
    "input": "no input here",
    "print": "only shells talk",
    "eval": "never",
    "exec": "never",
}
INTEGERS_ONLY = "# integers"
"""A line that sums whole numbers in a pure module says so with this comment; floats are folded by hand."""

ORDER_FREE_CALLS = {"sorted", "set", "frozenset", "any", "all", "min", "max", "sum"}

MACHINE_TRACES = re.compile("|".join([r"/wo" r"rk/", r"/ro" r"ot/", r"\.\./sha" r"red", r"/ho" r"me/\w"]))
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def product() -> tuple[Module, ...]:
    return modules(*PRODUCT_FOLDERS)


def test_functions_stay_short() -> None:
    offenders = []
    for module in modules(*PYTHON_FOLDERS):
        for function in functions(module):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            allowed = LONG_FUNCTIONS.get(f"{module.path}:{function.name}", FUNCTION_LINES_MAX)
            if lines > allowed:
                offenders.append(f"{module.path}:{function.lineno} {function.name} has {lines} lines")
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_modules_stay_short() -> None:
    offenders = [
        f"{module.path} has {module.lines} lines"
        for module in modules(*PRODUCT_FOLDERS, "bench", "deploy")
        if module.lines > LONG_MODULES.get(module.path, MODULE_LINES_MAX)
    ]
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_modules_are_named_after_things() -> None:
    names = [(m.path, m.name.rsplit(".", 1)[-1]) for m in modules(*PRODUCT_FOLDERS, "bench", "deploy")]
    assert [path for path, name in names if name in BANNED_MODULE_NAMES] == []


def test_no_module_is_called_like_a_folder() -> None:
    offenders = [
        m.path for m in product() if not m.is_package and m.name.rsplit(".", 1)[-1] in PRODUCT_FOLDERS
    ]
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_every_module_says_its_idea() -> None:
    offenders = [
        m.path for m in modules(*PRODUCT_FOLDERS, "bench", "deploy") if not ast.get_docstring(m.tree)
    ]
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_packages_hold_a_docstring_and_nothing_else() -> None:
    offenders = [m.path for m in product() if m.is_package and len(m.tree.body) != 1]
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_product_modules_are_no_scripts() -> None:
    assert [m.path for m in product() if "__name__ ==" in m.text] == []


def test_no_import_hides_inside_a_function_of_pure_code() -> None:
    offenders = [
        f"{module.path}:{node.lineno}"
        for module in product()
        if module.is_pure
        for function in functions(module)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_pure_code_calls_nothing_that_differs_between_runs() -> None:
    offenders = [
        f"{module.path}:{line} {complaint}"
        for module in product()
        if module.is_pure
        for line, complaint in impurities(module)
    ]
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


@pytest.mark.parametrize(
    "code",
    [
        "x = hash(y)",
        "x = time.monotonic()",
        "x = random.random()",
        "x = sum(costs)",
        "for x in {1, 2}: pass",
        "for x in set(y): pass",
        "x = [z for z in frozenset(y)]",
        "x = list({1, 2})",
        "def f():\n    seen = set()\n    return [x for x in seen]",
        "def f(seen: set[int]):\n    for x in seen: pass",
        "class A:\n    seen: set[int]\n    def f(self):\n        return tuple(self.seen)",
    ],
)
def test_the_check_for_pure_code_sees(code: str) -> None:
    assert list(impurities(Module("projections/x.py", code, ast.parse(code))))


@pytest.mark.parametrize(
    "code",
    [
        "for x in sorted({1, 2}): pass",
        "x = len(set(y))",
        "x = sum(len(y) for y in z) + sum(1 for y in z)",
        "x = sum(columns)  # integers",
        "x = sorted(y for y in {1, 2} if y)",
        "def f(seen: set[int]):\n    return 3 in seen",
        "x = self.time(3)",
        "def f():\n    seen = set()\n    return sorted(seen)",
    ],
)
def test_the_check_for_pure_code_lets_pass(code: str) -> None:
    assert list(impurities(Module("projections/x.py", code, ast.parse(code)))) == []


def test_every_module_has_its_test_file() -> None:
    offenders = [
        module.path
        for module in product()
        if not module.is_package and module.path not in WITHOUT_TEST_FILE and not _test_files_of(module)
    ]
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_every_test_file_has_its_module() -> None:
    offenders = []
    for folder in PRODUCT_FOLDERS:
        for path in sorted((REPOSITORY / "tests" / folder).rglob("test_*.py")):
            relative = path.relative_to(REPOSITORY / "tests")
            subject = path.stem.removeprefix("test_")
            beside = (REPOSITORY / relative.parent).glob("*.py")
            names = [p.stem for p in beside if p.stem != "__init__"] + [relative.parent.name]
            if not any(subject == name or subject.startswith(name + "_") for name in names):
                offenders.append(f"tests/{relative.as_posix()}")
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_every_test_can_fail() -> None:
    offenders = [
        f"{module.path}:{function.name}"
        for module in modules("tests")
        for function in functions(module)
        if function.name.startswith("test_")
        and f"{module.path}:{function.name}" not in WITHOUT_ASSERTION
        and not _asserts(function)
    ]
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_tests_do_not_sleep() -> None:
    offenders = [
        f"{module.path}:{node.lineno}"
        for module in modules("tests")
        if not module.path.startswith("tests/live/") and module.path not in SLEEPERS
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    ]
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_no_module_is_dead() -> None:
    imported = set().union(*(imported_names(module) for module in product()))
    offenders = [
        module.path
        for module in product()
        if not module.is_package and module.name not in imported and module.name not in ENTRY_POINTS
    ]
    assert not offenders, "\n".join([f"{len(offenders)}:", *offenders])


def test_foreign_libraries_come_in_through_their_door() -> None:
    offenders = []
    for module in product():
        for name in imported_names(module):
            for library, doors in DOORS.items():
                inside = name == library or name.startswith(library + ".")
                if inside and not module.path.startswith(doors):
                    offenders.append(f"{module.path} imports {library}")
    found = sorted(set(offenders))
    assert not found, "\n".join(found)


def test_nothing_is_left_for_later() -> None:
    found = list(_lines_with(UNFINISHED))
    assert not found, "\n".join(found)


def test_nothing_refers_to_a_machine() -> None:
    found = list(_lines_with(MACHINE_TRACES))
    assert not found, "\n".join(found)


def test_exceptions_are_still_needed() -> None:
    paths = {m.path: m for m in modules(*PYTHON_FOLDERS)}
    stale = [p for p in LONG_MODULES if p not in paths or paths[p].lines <= MODULE_LINES_MAX]
    for key in LONG_FUNCTIONS:
        path, _, name = key.partition(":")
        found = [f for f in functions(paths[path]) if f.name == name] if path in paths else []
        if not any((f.end_lineno or 0) - f.lineno + 1 > FUNCTION_LINES_MAX for f in found):
            stale.append(key)
    stale += [p for p in WITHOUT_TEST_FILE if p not in paths or _test_files_of(paths[p])]
    imported = set().union(*(imported_names(module) for module in product()))
    stale += [name for name in ENTRY_POINTS if name in imported]
    tests = {f"{m.path}:{f.name}": f for m in modules("tests") for f in functions(m)}
    stale += [key for key in WITHOUT_ASSERTION if key not in tests or _asserts(tests[key])]
    stale += [path for path in SLEEPERS if path not in paths or "time.sleep" not in paths[path].text]
    assert not stale, "\n".join([f"{len(stale)}:", *stale])


def impurities(module: Module) -> Iterator[tuple[int, str]]:
    """Line and complaint for every call or loop that a pure module may not have."""
    sets = _names_of_sets(module.tree)
    lines = module.text.splitlines()
    orderless = set(_orderless_walks(module.tree))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield from _banned_call(node, lines)
            order_taking = isinstance(node.func, ast.Name) and node.func.id in {
                "list",
                "tuple",
                "iter",
                "enumerate",
            }
            if order_taking and node.args and _is_set(node.args[0], sets):
                yield node.lineno, "takes a set in its accidental order; sort it"
        elif (
            isinstance(node, ast.For | ast.comprehension)
            and node not in orderless
            and _is_set(node.iter, sets)
        ):
            yield node.iter.lineno, "walks over a set in its accidental order; sort it"


def _banned_call(call: ast.Call, lines: list[str]) -> Iterator[tuple[int, str]]:
    function = call.func
    if isinstance(function, ast.Name):
        if function.id in BANNED_IN_PURE:
            yield call.lineno, f"{function.id}(): {BANNED_IN_PURE[function.id]}"
        if function.id == "sum":
            spanned = lines[call.lineno - 1 : call.end_lineno]
            if not _counts(call) and not any(INTEGERS_ONLY in line for line in spanned):
                yield call.lineno, f"sum(): say `{INTEGERS_ONLY}` if they are; fold floats by hand"
    elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        library = function.value.id
        if library in {"time", "random", "os", "datetime", "secrets", "uuid"}:
            yield call.lineno, f"{library}.{function.attr}(): an input from outside the log"


def _orderless_walks(tree: ast.AST) -> Iterator[ast.comprehension]:
    """Walks whose order cannot be seen: into a set, or into a call that sorts, counts or only asks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.SetComp):
            yield from node.generators
        elif isinstance(node, ast.Call) and not node.keywords and ast.unparse(node.func) in ORDER_FREE_CALLS:
            for argument in node.args:
                if isinstance(argument, ast.GeneratorExp | ast.ListComp):
                    yield from argument.generators


def _counts(call: ast.Call) -> bool:
    """`sum(1 for ...)`, `sum(len(x) for ...)` and `sum(map(len, ...))` are plainly whole numbers."""
    if ast.unparse(call).startswith("sum(map(len, "):
        return True
    if len(call.args) != 1 or not isinstance(call.args[0], ast.GeneratorExp | ast.ListComp):
        return False
    element = call.args[0].elt
    if isinstance(element, ast.Constant):
        return isinstance(element.value, int)
    return isinstance(element, ast.Call) and isinstance(element.func, ast.Name) and element.func.id == "len"


def _names_of_sets(tree: ast.AST) -> set[str]:
    """Names and self-attributes that the module makes or declares as sets."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and _is_set_type(n.annotation)]
            names |= {f".{n.target.id}" for n in fields if isinstance(n.target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
            names |= _target_names(node.target)
        elif isinstance(node, ast.arg) and node.annotation is not None and _is_set_type(node.annotation):
            names.add(node.arg)
        elif isinstance(node, ast.Assign) and _is_set(node.value, set()):
            for target in node.targets:
                names |= _target_names(target)
    return names


def _target_names(target: ast.expr) -> set[str]:
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, ast.Attribute):
        return {f".{target.attr}"}
    return set()


def _is_set_type(annotation: ast.expr) -> bool:
    inner = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(inner, ast.Name) and inner.id in {"set", "frozenset", "Set", "AbstractSet"}


def _is_set(node: ast.expr, sets: set[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in {"set", "frozenset"}
    if isinstance(node, ast.Name):
        return node.id in sets
    return isinstance(node, ast.Attribute) and f".{node.attr}" in sets


def _asserts(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """An assertion of its own, a wanted exception, or a helper that is named after its checking."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Attribute) and node.attr in {"raises", "fail", "warns"}:
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rsplit(".", 1)[-1].lstrip("_")
            if called.startswith(("assert", "check", "expect", "must", "refus", "until", "wait_for")):
                return True
    return False


def _test_files_of(module: Module) -> list[str]:
    folder, _, name = module.path.removesuffix(".py").rpartition("/")
    tests = REPOSITORY / "tests" / folder
    exact = tests / f"test_{name}.py"
    return [exact.name] if exact.exists() else [path.name for path in tests.glob(f"test_{name}_*.py")]


def _lines_with(pattern: re.Pattern[str]) -> Iterator[str]:
    for path, text in text_files():
        if path == "tests/test_tidy.py":
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                yield f"{path}:{number} {line.strip()[:100]}"

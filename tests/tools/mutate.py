"""Break the library on purpose, one place at a time, and see whether the tests notice.

``python tests/tools/mutate.py draw mutants.jsonl`` draws 300 mutants of the models of sampling, collectives, pipeline
and train.ddp. In a mutant, one place in the body of one function is different: an operator, a number, a condition, a
call of ``min`` or ``max``, or a statement that is left out.

``python tests/tools/mutate.py run mutants.jsonl verdicts.jsonl --package sampling`` runs the package's tests and
doctests, except those that start ranks or other programs, and appends each mutant's verdict and the test that noticed.
Run it again after an interruption, and it goes on. ``--root FOLDER`` takes library and tests from another checkout.

``python tests/tools/mutate.py score before.jsonl after.jsonl`` counts what each suite kills and lists what survives.

cosmic-ray and mutmut start a Python per mutant, and importing torch and collecting the tests takes ten times as long as
most of these tests. Here pytest collects once. Then a process is forked for each mutant, the code of one function is
replaced in it, and only the tests that call this function are run, fast ones first.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import json
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

PACKAGES = ("sampling", "collectives", "pipeline", "train/ddp")

# Modules that run processes or ranks, whose tests are slow. The other modules of the four packages are the models.
NOT_MODELS = (
    "collectives/timing.py",
    "collectives/wire/group.py",
    "collectives/wire/run.py",
    "pipeline/dataloader.py",
    "pipeline/queues.py",
    "pipeline/run.py",
    "pipeline/service.py",
    "pipeline/stored_images.py",
    "train/ddp/followed.py",
    "train/ddp/observed.py",
    "train/ddp/run.py",
)

# Tests with these marks are not run on mutants.
LEFT_OUT = "not (slow or oracle or browser or gpu)"

KILLED_PROCESS = "the process ended"  # instead of the name of a test that failed

# The tests of one mutant, fast ones first, take at most this long without a mutant. The slower ones are not run.
BUDGET_CPU_S = 8.0

# A mutant whose tests take longer than this counts as killed: it loops forever.
LIMIT_CPU_S = 20
LIMIT_S = 200

# What a mutant's process may take on top of what it begins with.
LIMIT_BYTES = 4 << 30

# Each operator, and what stands in its place in a mutant.
OPERATORS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
OTHER_NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "all": "any", "any": "all"}


class Mutant(NamedTuple):
    """The text from byte `start` to byte `stop` of a file is replaced."""

    package: str
    file: str
    line: int
    operator: str
    start: int
    stop: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}@{self.start} {self.operator}"


# ---- where a module can be changed


class _Places(ast.NodeVisitor):
    """Collects the mutants of one module. Annotations and text in docstrings and messages are left alone."""

    def __init__(self, package: str, file: str, source: str) -> None:
        self.package = package
        self.file = file
        self.source = source.encode()
        self.line_starts = [0]
        for line in self.source.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))
        self.mutants: list[Mutant] = []

    def start(self, node: Any) -> int:
        return self.line_starts[node.lineno - 1] + int(node.col_offset)

    def stop(self, node: Any) -> int:
        return self.line_starts[node.end_lineno - 1] + int(node.end_col_offset)

    def add(self, node: Any, operator: str, start: int, stop: int, after: str) -> None:
        before = self.source[start:stop].decode()
        self.mutants.append(Mutant(self.package, self.file, node.lineno, operator, start, stop, before, after))

    def add_other_operator(self, name: str, op: ast.AST, left: Any, right: Any) -> None:
        """Replace an operator's symbol, which stands between two nodes, perhaps next to brackets and comments."""
        if type(op) not in OPERATORS:
            return
        symbol, other = OPERATORS[type(op)]
        place = self.source.find(symbol.encode(), self.stop(left), self.start(right))
        if place >= 0:
            self.add(left, name, place, place + len(symbol), other)

    def add_inverted(self, operator: str, node: Any) -> None:
        text = self.source[self.start(node) : self.stop(node)].decode()
        self.add(node, operator, self.start(node), self.stop(node), f"(not ({text}))")

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = isinstance(node.left, ast.JoinedStr) or isinstance(getattr(node.left, "value", None), str)
        if not is_text:
            self.add_other_operator("arithmetic", node.op, node.left, node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add_other_operator("arithmetic", node.op, node.target, node.value)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for op, (left, right) in zip(node.ops, pairwise([node.left, *node.comparators]), strict=True):
            self.add_other_operator("comparison", op, left, right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.add_other_operator("and/or", node.op, node.values[0], node.values[1])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.add(node, "not", self.start(node), self.start(node.operand), "")
        elif isinstance(node.op, ast.USub):
            self.add(node, "minus", self.start(node), self.start(node.operand), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, "constant", self.start(node), self.stop(node), str(not node.value))
        elif isinstance(node.value, int):
            self.add(node, "constant", self.start(node), self.stop(node), str(node.value + 1))
        elif isinstance(node.value, float):
            self.add(node, "constant", self.start(node), self.stop(node), str(2 * node.value + 1))

    def visit_If(self, node: ast.If) -> None:
        self.add_inverted("condition", node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add_inverted("condition", node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.add_inverted("condition", test)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        if name in OTHER_NAMES:
            stop = self.stop(node.func)
            self.add(node, "other function", stop - len(name), stop, OTHER_NAMES[name])
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node.value, ast.Call):
            # A function that mentions `super` has a cell for its class, and only code with this cell can replace its.
            uses_super = any(isinstance(part, ast.Name) and part.id == "super" for part in ast.walk(node))
            nothing = "super()" if uses_super else "pass"
            self.add(node, "statement", self.start(node), self.stop(node), nothing)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(node, "statement", self.start(node), self.stop(node), "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self.add(node, "statement", self.start(node), self.stop(node), "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add(node, "statement", self.start(node), self.stop(node), "break")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        return

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for child in (*node.decorator_list, node.args, *node.body):
            self.visit(child)

    def visit_arg(self, node: ast.arg) -> None:
        return


def mutants_of(package: str, file: str, source: str) -> list[Mutant]:
    """Return every mutant of a module that is still Python.

    >>> [f"{mutant.before} becomes {mutant.after}" for mutant in mutants_of("p", "p/m.py", "if a < 3:\\n    b = a + c")]
    ['a < 3 becomes (not (a < 3))', '< becomes <=', '3 becomes 4', '+ becomes -']
    """
    places = _Places(package, file, source)
    places.visit(ast.parse(source))
    return [mutant for mutant in places.mutants if _is_python(mutated(source, mutant))]


def mutated(source: str, mutant: Mutant) -> str:
    """Return a module's text with the mutant in it."""
    text = source.encode()
    if text[mutant.start : mutant.stop].decode() != mutant.before:
        raise SystemExit(f"{mutant.file} line {mutant.line} is not the text that the mutant was drawn from")
    return (text[: mutant.start] + mutant.after.encode() + text[mutant.stop :]).decode()


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


# ---- functions


class Function(NamedTuple):
    """A function or method that stands in no other function, from its first decorator to its last line."""

    file: str
    first_line: int
    last_line: int


def functions_of(file: str, source: str) -> list[Function]:
    """Return the functions of a module, in which all mutants lie."""
    functions = []
    unseen: list[ast.AST] = [ast.parse(source)]
    while unseen:
        node = unseen.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first_line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions.append(Function(file, first_line, node.end_lineno or node.lineno))
        else:
            unseen += ast.iter_child_nodes(node)
    return functions


def function_at(functions: Iterable[Function], line: int) -> Function | None:
    for function in functions:
        if function.first_line <= line <= function.last_line:
            return function
    return None


def replace_code(path: Path, source: str, first_line: int) -> None:
    """Give the function that begins at this line of a loaded module the code and the defaults it has in `source`."""
    node = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and first_line == min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    )
    new = code_at(compile(source, str(path), "exec", dont_inherit=True), first_line, node.name)
    replaced = 0
    for function in gc.get_objects():
        if type(function) is FunctionType:
            old = function.__code__
            if (old.co_filename, old.co_firstlineno, old.co_name) == (str(path), first_line, node.name):
                function.__code__ = new
                replace_defaults(function, node.args)
                replaced += 1
    if not replaced:
        raise SystemExit(f"{path}: no function begins at line {first_line}")


def code_at(module: CodeType, first_line: int, name: str) -> CodeType:
    """Return the code of a function, which may be in a class, from the code of its module."""
    unseen = [module]
    while unseen:
        code = unseen.pop()
        if (code.co_firstlineno, code.co_name) == (first_line, name):
            return code
        unseen += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    raise SystemExit(f"no function {name} begins at line {first_line}")


def replace_defaults(function: FunctionType, arguments: ast.arguments) -> None:
    """Take the defaults that are numbers, strings, True, False or None; others are not changed by any mutant."""
    named = [argument.arg for argument in arguments.kwonlyargs]
    if function.__defaults__:
        pairs = zip(arguments.defaults, function.__defaults__, strict=True)
        function.__defaults__ = tuple(node.value if isinstance(node, ast.Constant) else old for node, old in pairs)
    for name, node in zip(named, arguments.kw_defaults, strict=True):
        if isinstance(node, ast.Constant) and function.__kwdefaults__ is not None:
            function.__kwdefaults__[name] = node.value


def clear_caches() -> None:
    """Forget what the library's functions returned while the tests were collected."""
    for cache in gc.get_objects():
        if type(cache) is functools._lru_cache_wrapper and cache.__module__.startswith("rankscope."):
            cache.cache_clear()


def draw(library: Path, seed: int, each: int) -> list[Mutant]:
    """Draw `each` mutants from the models of each package, without repetition."""
    generator = random.Random(seed)
    drawn: list[Mutant] = []
    for package in PACKAGES:
        mutants: list[Mutant] = []
        for path in sorted((library / package).rglob("*.py")):
            file = path.relative_to(library).as_posix()
            if file not in NOT_MODELS:
                source = path.read_text()
                functions = functions_of(file, source)
                mutants += [
                    mutant for mutant in mutants_of(package, file, source) if function_at(functions, mutant.line)
                ]
        drawn += generator.sample(mutants, each)
        print(f"{package}: {each} of {len(mutants)} mutants")
    return drawn


# ---- running tests on mutants


class Measured(NamedTuple):
    """What a test takes, and which functions it calls, as file and first line."""

    cpu_s: float
    calls: list[tuple[str, int]]


class Mutations:
    """A pytest plug-in that runs the collected tests on one mutant after the other."""

    def __init__(self, package: str, mutants: list[Mutant], verdicts: Path, library: Path) -> None:
        self.package = package
        self.mutants = mutants
        self.verdicts = verdicts
        self.library = library
        self.log = verdicts.with_suffix(".log")
        self.killer = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.killer:
            self.killer = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise SystemExit("not all tests can be collected")
        gc.unfreeze()  # conftest.py hides from the garbage collector what was collected; here it must be found
        measured = self.measure(session.items)
        judged = {verdict["name"] for verdict in read_verdicts(self.verdicts)}
        for mutant in self.mutants:
            if mutant.name not in judged:
                self.judge(mutant, session.items, measured)
        return True

    def run(self, items: list[pytest.Item], after_each: Callable[[pytest.Item], None]) -> None:
        """Run tests until one fails."""
        for item, following in pairwise([*items, None]):
            assert item is not None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            after_each(item)
            if self.killer:
                return

    def measure(self, items: list[pytest.Item]) -> dict[str, Measured]:
        """Run each test once, in another process, and note its time and the functions that it calls."""
        path = self.verdicts.with_suffix(f".{self.package.replace('/', '_')}.measured.json")
        if not path.exists():
            ended = in_child(lambda: self.write_measured(items, path), self.log, limits=False)
            if ended or not path.exists():
                raise SystemExit(f"a test fails without a mutant ({ended})")
        rows = json.loads(path.read_text())
        print(f"{self.package}: {len(rows)} tests, {sum(row['cpu_s'] for row in rows.values()):.0f} s of CPU, traced")
        return {
            test: Measured(row["cpu_s"], [(file, line) for file, line in row["calls"]]) for test, row in rows.items()
        }

    def write_measured(self, items: list[pytest.Item], path: Path) -> None:
        rows: dict[str, Any] = {}
        called: set[CodeType] = set()

        def note(frame: Any, event: str, argument: Any) -> None:
            called.add(frame.f_code)  # Python asks at each call, and as nothing is returned, at no line

        def finish(item: pytest.Item) -> None:
            nonlocal began_s
            # Nested functions are listed, too; `judge` takes the outermost one that contains their line.
            calls = [
                (Path(code.co_filename).relative_to(self.library).as_posix(), code.co_firstlineno)
                for code in tuple(called)
                if Path(code.co_filename).is_relative_to(self.library)
            ]
            rows[item.nodeid] = {"cpu_s": time.process_time() - began_s, "calls": calls}
            called.clear()
            began_s = time.process_time()

        clear_caches()
        threading.settrace(note)
        sys.settrace(note)
        began_s = time.process_time()
        self.run(items, finish)
        sys.settrace(None)
        if self.killer:
            raise SystemExit(f"{self.killer} fails without a mutant")
        path.write_text(json.dumps(rows))

    def judge(self, mutant: Mutant, items: list[pytest.Item], measured: dict[str, Measured]) -> None:
        """Run the tests that call the mutant's function, and append the verdict."""
        path = self.library / mutant.file
        source = path.read_text()
        function = function_at(functions_of(mutant.file, source), mutant.line)
        assert function is not None
        chosen = []
        cpu_s = 0.0
        for item in sorted(items, key=lambda item: measured[item.nodeid].cpu_s):
            row = measured[item.nodeid]
            calls = any(file == mutant.file and function_at([function], line) for file, line in row.calls)
            if calls and cpu_s + row.cpu_s <= BUDGET_CPU_S:
                chosen.append(item)
                cpu_s += row.cpu_s
        killer_file = self.verdicts.with_suffix(".killer")
        killer_file.unlink(missing_ok=True)

        def run_on_mutant() -> None:
            replace_code(path, mutated(source, mutant), function.first_line)
            killer_file.write_text(KILLED_PROCESS)  # unless the tests come to an end
            clear_caches()
            self.run(chosen, lambda item: None)
            killer_file.write_text(self.killer)

        began_s = time.monotonic()
        ended = in_child(run_on_mutant, self.log)
        if not killer_file.exists():
            raise SystemExit(f"{mutant.name}: the mutant was not made\n{self.log.read_text()}")
        killer = killer_file.read_text()
        if killer == KILLED_PROCESS:
            killer = f"{KILLED_PROCESS}: {ended}"
        verdict = {"name": mutant.name, **mutant._asdict(), "killed": bool(killer), "killer": killer}
        verdict |= {"tests": len(chosen), "took_s": round(time.monotonic() - began_s, 1)}
        with self.verdicts.open("a") as file:
            file.write(json.dumps(verdict) + "\n")


def in_child(work: Callable[[], None], log: Path, limits: bool = True) -> str:
    """Do something in a forked process; return how it ended, or nothing if it ended well."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if limits:
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                num_bytes = pages * resource.getpagesize() + LIMIT_BYTES
                resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
                resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU_S, LIMIT_CPU_S))
            work()
            os._exit(0)
        except BaseException:
            log.write_text(traceback.format_exc())
        finally:
            os._exit(1)
    began_s = time.monotonic()
    ended, status = 0, 0
    while not ended and (not limits or time.monotonic() - began_s < LIMIT_S):
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and what it has started
    if not ended:
        os.waitpid(child, 0)
        return f"after {LIMIT_S} s"
    return f"status {status}" if status else ""


def run(package: str, mutants: list[Mutant], verdicts: Path, root: Path) -> None:
    """Append a verdict to the file for each mutant that has none there."""
    os.chdir(root)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root / "lib"), str(root)])
    sys.path[:0] = [str(root / "lib"), str(root)]
    plugin = Mutations(package, mutants, verdicts, root / "lib/rankscope")
    options = ["-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=short", "-m", LEFT_OUT]
    status = pytest.main([*options, f"tests/{package}", f"lib/rankscope/{package}"], plugins=[plugin])
    if status != 0:
        raise SystemExit(int(status))


# ---- files and scores


def read_mutants(path: Path) -> list[Mutant]:
    return [Mutant(**json.loads(line)) for line in path.read_text().splitlines()]


def read_verdicts(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def score(*files: Path) -> None:
    """Print how many mutants each suite killed, and the mutants that not every suite killed."""
    suites = [{verdict["name"]: verdict for verdict in read_verdicts(file)} for file in files]
    names = [name for name in suites[0] if all(name in suite for suite in suites)]
    print(f"{'package':12} {'mutants':>7} " + " ".join(f"{file.stem:>12}" for file in files))
    for package in (*PACKAGES, "all"):
        counted = [name for name in names if package in ("all", suites[0][name]["package"])]
        killed = [sum(suite[name]["killed"] for name in counted) for suite in suites]
        print(f"{package:12} {len(counted):7} " + " ".join(f"{count:12}" for count in killed))
    for name in names:
        if not all(suite[name]["killed"] for suite in suites):
            verdict = suites[0][name]
            change = f"{' '.join(verdict['before'].split())} → {' '.join(verdict['after'].split())}"
            killers = " | ".join(suite[name]["killer"] or "survives" for suite in suites)
            print(f"{name}: {change}: {killers}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("mutants", type=Path)
    drawing.add_argument("--seed", type=int, default=31)
    drawing.add_argument("--each", type=int, default=75, help="how many mutants per package")
    running = commands.add_parser("run")
    running.add_argument("mutants", type=Path)
    running.add_argument("verdicts", type=Path)
    running.add_argument("--package", choices=PACKAGES, required=True)
    for command in (drawing, running):
        command.add_argument("--root", type=Path, default=Path(__file__).parents[2], help="the checkout")
    scoring = commands.add_parser("score")
    scoring.add_argument("verdicts", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "draw":
        drawn = draw(arguments.root / "lib/rankscope", arguments.seed, arguments.each)
        arguments.mutants.write_text("".join(json.dumps(mutant._asdict()) + "\n" for mutant in drawn))
        print(Counter(mutant.operator for mutant in drawn))
    elif arguments.command == "run":
        mutants = [mutant for mutant in read_mutants(arguments.mutants) if mutant.package == arguments.package]
        run(arguments.package, mutants, arguments.verdicts.absolute(), arguments.root.absolute())
    else:
        score(*arguments.verdicts)


if __name__ == "__main__":
    main()

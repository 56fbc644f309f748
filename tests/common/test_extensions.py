"""What parts of the library add: records are checked, names are claimed once, and a broken module stops no other."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope import explorers, figures
from rankscope.cli import registry
from rankscope.common import extensions
from rankscope.common.extensions import Extension, check_extension, import_all, left_out, load
from rankscope.explorers import entries
from rankscope.explorers.explorer import Explorer, Setting
from rankscope.explorers.opening import ENTRIES, shows

SETTINGS = (Setting("ranks", 4, range(1, 9), "ranks"),)

MakePackage = Callable[..., str]


@pytest.fixture
def make_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePackage:
    """A function that writes a package of modules, given by their names and texts, and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extensions, "_left_out", {})

    def make(name: str, **modules: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").touch()
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
        for module in ("", *(f".{module}" for module in modules)):
            monkeypatch.setitem(sys.modules, f"{name}{module}", None)
            monkeypatch.delitem(sys.modules, f"{name}{module}")
        return name

    return make


# ---- broken modules


def test_a_module_that_lacks_a_foreign_package_is_left_out_and_the_rest_goes_on(make_package: MakePackage) -> None:
    package = make_package("with_an_extra", aaa="import a_package_of_an_extra.part", zzz="VALUE = 3")
    import_all(package)
    assert sys.modules["with_an_extra.zzz"].VALUE == 3
    assert dict(left_out()) == {"with_an_extra.aaa": "a_package_of_an_extra"}
    assert load("with_an_extra.aaa:anything") is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import rankscope.nothing_here", "ModuleNotFoundError: No module named 'rankscope.nothing_here'"),
        ("import json.nope", "ModuleNotFoundError: No module named 'json.nope'"),
        ("from rankscope.cluster import Nothing", "ImportError: cannot import name 'Nothing'"),
        ("def", "SyntaxError: "),
    ],
)
def test_a_faulty_module_is_named(make_package: MakePackage, text: str, error: str) -> None:
    package = make_package("with_a_fault", faulty=text)
    for read in (lambda: import_all(package), lambda: load("with_a_fault.faulty:anything")):
        with pytest.raises(ImportError, match=f"^with_a_fault.faulty cannot be imported: {error}"):
            read()
    assert not left_out()


def test_a_name_that_a_module_lacks_is_named_with_it(make_package: MakePackage) -> None:
    make_package("without_a_name", networks="")
    with pytest.raises(ImportError, match=r"without_a_name.networks has no 'mine', which an EXTENSION names"):
        load("without_a_name.networks:mine")


def test_explorers_and_commands_work_without_a_module_that_is_left_out(
    make_package: MakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any missing package of any module stopped the gallery, and the whole command line."""
    package = make_package("my_additions", broken="import a_package_of_an_extra")
    added = (*extensions.extensions(), Extension(explorers=(package,), commands=(package,)))
    monkeypatch.setattr(entries, "extensions", lambda: added)
    monkeypatch.setattr(registry, "extensions", lambda: added)
    assert "samplers" in dir(explorers)
    assert "show" in registry.commands()
    why = "my_additions.broken needs a_package_of_an_extra, which is not installed"
    with pytest.raises(AttributeError, match=f"has no attribute 'broken': {why}"):
        _ = explorers.broken


# ---- records


WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"explorers": "mine.explorers"}, "must be a tuple of names, got 'mine.explorers'"),
    ({"commands": ["mine.commands"]}, r"must be a tuple of names, got \['mine.commands'\]"),
    ({"fixtures": ("",)}, r"must be a tuple of names, got \('',\)"),
    ({"needs": (3,)}, r"must be a tuple of names, got \(3,\)"),
    ({"networks": ("mine.networks",)}, "must be like 'module:function', got 'mine.networks'"),
    ({"figures": ("lines",)}, r"must map names of figures to modules, got \('lines',\)"),
    ({"figures": {"lines": 3}}, "must map names of figures to modules, got {'lines': 3}"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG_FIELDS)
def test_a_record_names_its_module_and_the_field_that_is_wrong(fields: dict[str, Any], message: str) -> None:
    (field,) = fields
    with pytest.raises(ValueError, match=f"{field} of EXTENSION in mine.extension {message}"):
        check_extension("mine.extension", Extension(**fields))


def test_every_field_of_a_record_is_checked() -> None:
    assert {field for fields, _ in WRONG_FIELDS for field in fields} == set(Extension._fields)
    with pytest.raises(ValueError, match="EXTENSION in mine.extension must be an Extension, got None"):
        check_extension("mine.extension", None)


def test_the_records_of_the_library_are_right() -> None:
    for extension in extensions.extensions():
        check_extension("theirs", extension)


# ---- names


def show(name: str, **fields: Any) -> Any:
    def make() -> Explorer:
        return Explorer(SETTINGS, {}, lambda now: [])

    make.__name__ = name
    return shows(SETTINGS, **{"title": "Mine", "notebook": "04_collectives", **fields})(make)


NAMES_OF_THE_PACKAGE = (
    *("panel", "networks", "entries", "opening", "explorer", "core", "gallery_panel", "player_panel"),
    *("gallery", "catalogue"),
)


@pytest.mark.parametrize("name", NAMES_OF_THE_PACKAGE)
def test_an_explorer_needs_another_name_than_its_package_has(name: str) -> None:
    """Once the module was imported, Python returned it, and no explorer."""
    with pytest.raises(ValueError, match=f"explorer '{name}' of .* needs another name: rankscope.explorers.{name} exi"):
        show(name)
    assert name not in ENTRIES


def test_every_module_of_explorers_is_refused_as_a_name() -> None:
    modules = {path.stem for path in Path(entries.__file__).parent.glob("[a-z]*.py")}
    assert modules <= {*NAMES_OF_THE_PACKAGE}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"title": 3}, "title of explorer 'mine' must be a str, got 3"),
        ({"notebook": None}, "notebook of explorer 'mine' must be a str, got None"),
        (
            {"inputs": "profiles"},
            "inputs of explorer 'mine' must be a function of what the gallery was given, got",
        ),
        ({"on_the_site": ("algorithm",)}, r"on_the_site of explorer 'mine' must be a mapping, got \('algorithm',\)"),
    ],
)
def test_an_explorer_names_itself_and_the_field_that_is_wrong(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        show("mine", **fields)
    assert "mine" not in ENTRIES


@pytest.mark.parametrize("name", ["svg", "palette", "cache"])
def test_a_figure_needs_another_name_than_its_package_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "extensions", lambda: (Extension(figures={name: "mine.figures"}),))
    with pytest.raises(
        ValueError, match=f"figure '{name}' of mine.figures needs another name: rankscope.figures.{name}"
    ):
        dir(figures)


def test_two_parts_with_a_figure_of_one_name_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one won, without a word."""
    parts = (Extension(figures={"copies": "one.figures"}), Extension(figures={"copies": "other.figures"}))
    monkeypatch.setattr(figures, "extensions", lambda: parts)
    message = "one.figures has a figure 'copies' already, and so has other.figures"
    with pytest.raises(ValueError, match=re.escape(message)):
        _ = figures.copies

"""What parts of the library add loads, and a module that lacks a package stops no other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankscope import explorers, figures
from rankscope.common import extensions
from rankscope.common.extensions import import_all, left_out, load


def test_everything_that_the_library_adds_can_be_loaded() -> None:
    for extension in extensions.extensions():
        for package in (*extension.explorers, *extension.commands):
            import_all(package)
        for place in extension.networks:
            assert callable(load(place))
    assert not left_out()
    for name in figures.__all__:
        assert callable(getattr(figures, name))
    for name in explorers.__all__:
        assert callable(getattr(explorers, name))


def test_a_module_that_lacks_a_foreign_package_is_left_out_and_a_faulty_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extensions, "_left_out", {})
    for package, text in (("with_an_extra", "import a_package_of_an_extra.part"), ("with_a_fault", "1 / 0")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "aaa.py").write_text(text)
        (tmp_path / package / "zzz.py").write_text("VALUE = 3")
    import_all("with_an_extra")
    assert sys.modules["with_an_extra.zzz"].VALUE == 3
    assert dict(left_out()) == {"with_an_extra.aaa": "a_package_of_an_extra"}
    with pytest.raises(ImportError, match=r"with_a_fault\.aaa .*ZeroDivisionError"):
        import_all("with_a_fault")

"""What the documentation names exists: classes, modules, files, pages, variables, settings."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

import hoptui
from docs._generate import pages
from docs._generate.layout import load, resolve
from tests.docs.markdown import PAGES, ROOT, name

GLOSSARY = re.findall(
    r"(?m)^\| ([^|]+) \| ([^|]+) \| `([\w.]+)` \|$", (ROOT / "docs/glossary.md").read_text()
)
FILES = ("hoptui.json",)
"""Files that look like modules."""
NAMED = sorted(
    {
        found
        for page in PAGES
        if page.name != "module_names.md"
        for found in re.findall(r"`(hoptui(?:_trainer)?(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?)`", page.read_text())
        if found not in FILES
    }
)
MADE = ("benchmarks/results/",)
"""What does not exist before it is made."""


def test_the_glossary_has_about_forty_words() -> None:
    assert 40 <= len(GLOSSARY) <= 50
    words = [word for word, _, _ in GLOSSARY]
    assert words == sorted(set(words))


@pytest.mark.parametrize(("word", "sentence", "path"), GLOSSARY, ids=[word for word, _, _ in GLOSSARY])
def test_a_word_of_the_glossary_has_one_sentence_and_exists(word: str, sentence: str, path: str) -> None:
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert ". " not in sentence
    assert resolve(path) is not None


@pytest.mark.parametrize("path", NAMED)
def test_a_named_module_or_class_exists(path: str) -> None:
    if path.startswith("hoptui.integrations."):  # it imports a framework, which need not be installed here
        assert path in _adapters()
        return
    assert resolve(path) is not None


@functools.cache
def _adapters() -> set[str]:
    """The adapters, and what their modules define."""
    found = set[str]()
    for file in (ROOT / "hoptui/integrations").glob("*.py"):
        module = f"hoptui.integrations.{file.stem}"
        nodes = ast.parse(file.read_text()).body
        named = {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        found |= {module, *(f"{module}.{name}" for name in named)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_named_files_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`((?:tests|examples|benchmarks|screenshots|docs|\.ci)/[\w./-]*)`", text)
    assert [path for path in named if path not in MADE and not (ROOT / path).exists()] == []
    for path in re.findall(r"`(hoptui/[\w/]+)\.py`", text):
        assert resolve(path.replace("/", "."))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert [target for target in targets if not _leads_somewhere(page, target)] == []


def _leads_somewhere(page: Path, target: str) -> bool:
    """Whether a link of a page leads to a file, or to a page that will be generated; and to a heading of
    it."""
    path, _, anchor = target.partition("#")
    found = (page.parent / path).resolve() if path else page
    if not found.exists():
        return found.relative_to(ROOT / "docs").as_posix() in pages.PAGES
    if path.startswith(pages.SCREENSHOTS) and found.is_file():
        return path.removeprefix(f"{pages.SCREENSHOTS}/") in pages.PICTURES
    return not anchor or anchor in _anchors(found)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the table of contents makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_table_of_packages_has_what_each_imports() -> None:
    table = (ROOT / "docs/internals/architecture.md").read_text()
    rows = re.findall(r"(?m)^\| `hoptui\.(\w+)` \| [^|]+ \| ([^|]+) \|$", table)
    folders = {path.parent.name for path in (ROOT / "hoptui").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "hoptui").glob("[a-z]*.py")}
    assert {package for package, _ in rows} == folders | modules
    wrong = {
        package: _imported(package)
        for package, listed in rows
        if package != "cli" and set(re.findall(r"`(\w+)`", listed)) != _imported(package)
    }
    assert wrong == {}


def _imported(package: str) -> set[str]:
    """The other packages of hoptui that a package, or a module beside the packages, imports when it runs."""
    found = set()
    place = ROOT / "hoptui" / package
    for path in place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    parts = [module.split(".") for module in found if module.startswith("hoptui.")]
    return {name for _, name, *_ in parts if name != package}


def test_the_changelog_has_this_version_and_what_comes_next() -> None:
    versions = re.findall(r"(?m)^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text())
    assert versions[0] == "Unreleased"
    assert hoptui.__version__ in versions


def test_the_navigation_has_every_page_once() -> None:
    listed = re.findall(r"(?m)^ +- [^:\n]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text())
    here = [name(page).removeprefix("docs/") for page in PAGES if name(page).startswith("docs/")]
    wanted = [page for page in here if not page.startswith("decisions/")] + list(pages.PAGES)
    assert sorted(listed) == sorted(wanted)


def test_decisions_are_numbered_listed_and_complete() -> None:
    folder = ROOT / "docs/decisions"
    index = (folder / "index.md").read_text()
    found = sorted(folder.glob("[0-9]*.md"))
    assert [path.name[:3] for path in found] == [f"{number:03}" for number in range(1, len(found) + 1)]
    for path in found:
        title, *_ = path.read_text().splitlines()
        assert f"| [{path.name[:3]}]({path.name}) | {title.removeprefix(f'# {path.name[:3]}. ')} |" in index
        for part in ("Context", "Decision", "Consequences"):
            assert f"\n## {part}\n" in path.read_text(), path.name


def test_every_verdict_is_in_the_page_of_concepts() -> None:
    page = pages.concepts((ROOT / "docs/concepts.md").read_text())
    assert re.findall(r"(?m)^\| `([\w-]+)` \|", page) == list(load("verdicts").VERDICTS)


def test_every_variable_of_the_product_is_in_the_settings_page() -> None:
    page = pages.settings((ROOT / "docs/reference/settings.md").read_text())
    used = {
        variable
        for file in (ROOT / "hoptui").rglob("*.py")
        for variable in re.findall(r"[\"'](HOPTUI(?:_[A-Z]+)*)[\"']", file.read_text())
    }
    assert used
    assert {variable for variable in used if f"`{variable}`" not in page} == set()
    documented = {variable for variable, _, _ in pages.VARIABLES}
    assert documented - used == set()


def test_defaults_of_the_settings_page_are_those_of_the_code() -> None:
    page = pages.settings((ROOT / "docs/reference/settings.md").read_text())
    for variable, value in load("retention").DEFAULTS.items():
        assert f"| `{variable}` | {value:g} |" in page
    from hoptui.daemon.__main__ import IDLE_S

    assert f"| `HOPTUI_IDLE_S` | {IDLE_S:g} |" in page

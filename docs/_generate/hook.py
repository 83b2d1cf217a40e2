"""What mkdocs calls: adds the generated pages before the site is built."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs._generate import pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every decision into the navigation, in the order of their numbers."""
    decisions = sorted(Path(config.docs_dir, "decisions").glob("[0-9]*.md"))
    listed = ["decisions/index.md", *(f"decisions/{path.name}" for path in decisions)]
    config.nav = [*(config.nav or ()), {"Decisions": listed}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every generated page, and the screenshots that pages show."""
    from mkdocs.structure.files import File

    for place, make in pages.PAGES.items():
        files.append(File.generated(config, place, content=make()))
    for picture in pages.PICTURES:
        source = Path(config.docs_dir).parent / "screenshots" / picture
        files.append(File.generated(config, f"pictures/{picture}", content=source.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the tables of the pages that are templates; lead to screenshots where the site has them."""
    fill = pages.TEMPLATES.get(page.file.src_uri)
    markdown = markdown.replace(f"]({pages.SCREENSHOTS}/", "](pictures/")
    return fill(markdown) if fill else markdown

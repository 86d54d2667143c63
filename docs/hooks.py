"""What MkDocs does beside its own: takes in pages from outside of docs/, and refuses pages that load from elsewhere.

Links in the repository are relative to where a file lies there. On the site, docs/ is the root, README.md its first
page, and an example's source a page of its own; links are rewritten to that.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
FIRST = "index.md"
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
LANGUAGES = {".py": "python", ".sh": "bash"}
FOREIGN = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//"
    r"|<link\b[^>]*\bhref=[\"']?https?:"
    r"|<pre class=\"mermaid"  # the theme fetches what draws them from a CDN
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside of docs/."""
    files.append(File.generated(config, FIRST, content=(ROOT / "README.md").read_text()))
    for name in OUTSIDE:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    for path in _sources():
        name = path.relative_to(ROOT).with_suffix(".md").as_posix()
        files.append(File.generated(config, name, content=_listing(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository become links of the site."""
    if page.file.src_uri == FIRST:
        markdown = markdown.replace("](examples/)", "](examples/README.md)")
    at_root = page.file.src_uri in (FIRST, *OUTSIDE)
    markdown = markdown.replace("](docs/" if at_root else "](../", "](")
    return re.sub(r"\]\(([\w/]+)\.(?:py|sh)\)", r"](\1.md)", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """The site works without a network, and tells no third party who reads it."""
    for page in Path(config.site_dir).rglob("*.html"):
        if found := FOREIGN.search(page.read_text()):
            raise PluginError(f"{page.name} loads from elsewhere: {found.group()}…")


def _sources() -> list[Path]:
    return sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in LANGUAGES)


def _listing(path: Path) -> str:
    name = path.relative_to(ROOT)
    return f"# {name}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text()}```\n"

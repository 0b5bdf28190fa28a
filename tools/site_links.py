"""What is wrong with the links of a folder of HTML: read with the standard library alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself, unlike a link that somebody follows.
LOADED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "iframe": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
    "input": ("src",),
}
LINK_RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "manifest"}
URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """Names, links and loaded files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self._style = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.names.update(found[name] for name in ("id", "name") if found.get(name))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and LINK_RELATIONS & set(found.get("rel", "").split()):
            self.loaded.append(found.get("href", ""))
        for name in LOADED.get(tag, ()):
            if name == "srcset":
                parts = found.get(name, "").split(",")
                self.loaded += [part.split()[0] for part in parts if part.strip()]
            elif found.get(name):
                self.loaded.append(found[name])
        self.loaded += urls(found.get("style", ""))
        self._style = tag == "style"

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loaded += urls(data)


def urls(css: str) -> list[str]:
    """What a style sheet loads."""
    return [a or b for a, b in URL.findall(css)]


def elsewhere(address: str) -> bool:
    """Whether an address needs a network."""
    parts = urlsplit(address)
    return parts.scheme in ("http", "https", "ftp") or (not parts.scheme and bool(parts.netloc))


def faults(folder: Path) -> list[str]:
    """Sentences about links that lead nowhere and about what would come from elsewhere."""
    html = [path for path in folder.rglob("*.html") if folder / "_static" not in path.parents]
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in html}
    found = list(_pages(folder, pages))
    for path in folder.rglob("*.css"):
        for address in urls(path.read_text(encoding="utf-8", errors="replace")):
            if elsewhere(address):
                found.append(f"{path.relative_to(folder)} loads {address}")
    index = folder / "searchindex.js"
    if not index.is_file() or index.stat().st_size < 10_000:
        found.append("there is no search index")
    return sorted(set(found))


def _pages(folder: Path, pages: dict[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        where = path.relative_to(folder)
        for address in page.loaded:
            if elsewhere(address):
                yield f"{where} loads {address}"
            elif not urlsplit(address).scheme and not _target(path, address).is_file():
                yield f"{where} loads {address}, which is not there"
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = _target(path, address)
            if not target.is_file():
                yield f"{where} links to {address}, which is not there"
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].names
            ):
                yield f"{where} links to {address}, which has no such place"


def _target(page: Path, address: str) -> Path:
    """The file that an address of a page means."""
    name = unquote(urlsplit(address).path)
    if not name:
        return page
    target = (page.parent / name).resolve()
    return target / "index.html" if target.is_dir() else target

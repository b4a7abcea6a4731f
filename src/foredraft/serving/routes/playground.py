"""GET /playground: the page to look at, with its script, style sheet and icon from the package."""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from fastapi import APIRouter, Request, Response

ONLY_THIS_SERVER = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": ONLY_THIS_SERVER,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a browser may keep a file and must ask whether it is still the same
}

router = APIRouter(prefix="/playground", include_in_schema=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class PageFile:
    """One file of the page.

    Attributes:
        body: Its bytes.
        media_type: Its kind, as a browser is told.
        tag: Changes with the bytes; in quotes, as the ETag header has it.
    """

    body: bytes
    media_type: str
    tag: str


@cache
def page_file(name: str, media_type: str) -> PageFile:
    """A file of the playground, read from the package once."""
    body = (files("foredraft.serving") / "playground" / name).read_bytes()
    return PageFile(body=body, media_type=media_type, tag=f'"{sha256(body).hexdigest()[:32]}"')


def answer(request: Request, file: PageFile) -> Response:
    """The file, or 304 without a body where the browser has these bytes already."""
    headers = HEADERS | {"ETag": file.tag}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)


@router.get("")
def page(request: Request) -> Response:
    return answer(request, page_file("index.html", "text/html; charset=utf-8"))


@router.get("/playground.js")
def script(request: Request) -> Response:
    return answer(request, page_file("playground.js", "text/javascript; charset=utf-8"))


@router.get("/playground.css")
def style_sheet(request: Request) -> Response:
    return answer(request, page_file("playground.css", "text/css; charset=utf-8"))


@router.get("/icon.svg")
def icon(request: Request) -> Response:
    return answer(request, page_file("icon.svg", "image/svg+xml"))

"""Finding the answer in a completion, tagged or boxed."""

import re

_BRACES = re.compile(r"\\boxed\{|\\[{}]|[{}]")


def extract_xml_answer(text: str) -> str:
    """The raw content of the last complete `<answer>…</answer>` pair of `text`, or `""` where there is none.

    A closing tag pairs with the nearest opening tag before it, and each opening tag with one closing tag
    only.
    """
    *closed, _ = text.split("</answer>")
    for piece in reversed(closed):
        _, opening, content = piece.rpartition("<answer>")
        if opening:
            return content
    return ""


def extract_boxed(text: str) -> str | None:
    """The content of the last complete `\\boxed{…}` of `text`, or `None` where there is none.

    Braces inside it balance; `\\{` and `\\}` do not count. Of boxes inside each other the innermost is the
    last.
    """
    unclosed: list[tuple[int, bool]] = []
    last: tuple[int, int] | None = None
    for brace in _BRACES.finditer(text):
        if brace[0] == "}":
            start, is_box = unclosed.pop() if unclosed else (0, False)
            if is_box and (last is None or start > last[0]):
                last = (start, brace.start())
        elif brace[0] in ("{", "\\boxed{"):
            unclosed.append((brace.end(), brace[0] != "{"))
    return None if last is None else text[last[0] : last[1]]

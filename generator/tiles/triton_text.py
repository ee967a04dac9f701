"""Lines of emitted Python that are too long for the page, broken as ruff breaks them."""

from __future__ import annotations

from collections.abc import Container, Sequence

UNIT = "    "
_OPENING, _CLOSING = "([{", ")]}"
_LOOSEST = (" & ", " + ", " * ", " / ")  # operators, loosest first


def python_lines(text: str, room: int) -> list[str]:
    """Return a statement in lines of at most `room` characters where that can be."""
    if len(text) <= room:
        return [text]
    left, assigned, right = text.partition("= ")
    if not assigned or not left.rstrip(" +").isidentifier():
        left, right = "", text
    defined = right.startswith("def ")
    opening, inner = _call(right.removeprefix("def ").removesuffix(":") if defined else right)
    head = f"{left}= {opening}" if left else f"{'def ' * defined}{opening}"
    if not opening and _is_hugged(right):
        opening, inner = _last_call(right)
        head += opening
    called = opening[-1:].isalnum() or opening.endswith(("_", "]"))
    return [f"{head}(", *_inside(inner, room - len(UNIT), call=called), ")" + ":" * defined]


def _call(text: str) -> tuple[str, str]:
    """Return what is called and with what, if a text is one call; else nothing and the text."""
    opening = text.find("(")
    name = text[:opening].replace(".", "").partition("[")[0]
    if opening > 0 and text.endswith(")") and name.isidentifier():
        depth = 0
        for i, c in enumerate(text):
            depth += (c in _OPENING) - (c in _CLOSING)
            if depth == 0 and i >= opening:
                break
        if i + 1 == len(text):
            return text[:opening], text[opening + 1 : -1]
    return "", text


def _is_hugged(text: str) -> bool:
    """Say whether a text has one loosest operator at most, and ends in a call to be broken."""
    operators = next((len(p) - 1 for m in _LOOSEST if len(p := split(text, m)) > 1), 0)
    return operators <= 1 and text.endswith(")")


def _last_call(text: str) -> tuple[str, str]:
    """Return what stands before the last call's arguments, and those."""
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] in _CLOSING) - (text[i] in _OPENING)
        if depth == 0:
            break
    return text[:i], text[i + 1 : -1]


def _inside(text: str, room: int, *, call: bool) -> list[str]:
    """Return what stands in parentheses: in one line, an argument per line, or an operand."""
    if len(text) <= room:
        return [UNIT + text]
    found = []
    for argument in split(text, ", ") if call else [text]:
        rows = [argument]
        if len(argument) >= room:
            rows = _operands(argument)
        found += [UNIT + row for row in rows[:-1]] + [UNIT + rows[-1] + ("," if call else "")]
    return found


def _operands(text: str) -> list[str]:
    """Return the operands of the loosest operator, each but the first behind the operator."""
    name, given, value = text.partition("=")
    named = given and name.isidentifier() and not value.startswith("=")
    for operator in _LOOSEST:
        first, *rest = split(value if named else text, operator)
        if rest:
            rows = [first, *(operator.lstrip() + row for row in rest)]
            return [f"{name}=(", *(UNIT + row for row in rows), ")"] if named else rows
    return [text]


def enclosed(text: str) -> str:
    """Return a text in parentheses, unless it is a name, a positive number or a call."""
    return text if len(split(text, " ")) == 1 and text[0] != "-" else f"({text})"


def free(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken: itself, or with lines below behind it."""
    while name in taken:
        name += "_"
    return name


def split(text: str, mark: str) -> Sequence[str]:
    """Split a text at a mark that stands in no brackets."""
    found, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in _OPENING) - (c in _CLOSING)
        if depth == 0 and text.startswith(mark, i):
            found.append(text[start:i])
            start = i + len(mark)
    return [*found, text[start:]]

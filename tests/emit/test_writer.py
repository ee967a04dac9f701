"""The line writer, the header and the dispatch table."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mirage_kernels.generator.emit.part import Header
from mirage_kernels.generator.emit.table import Entry, emit_table
from mirage_kernels.generator.emit.writer import WIDTH, Writer, wrapped


def test_a_block_indents_its_body() -> None:
    writer = Writer()
    with writer.block("if (a) {"):
        writer.line("b();")
    assert writer.text() == "if (a) {\n  b();\n}\n"


def test_a_block_may_close_with_nothing() -> None:
    writer = Writer(unit="    ")
    with writer.block("for a in b:", ""):
        writer.line("c()")
    assert writer.text() == "for a in b:\n    c()\n"


def test_an_empty_line_has_no_indentation() -> None:
    writer = Writer(depth=3)
    writer.line()
    assert writer.text() == "\n"


def test_a_long_assignment_breaks_behind_the_equals_sign() -> None:
    writer = Writer(depth=1)
    writer.line(f"const auto a = {'b' * 90};")
    assert writer.lines == ["  const auto a =", f"      {'b' * 90};"]


def test_an_assignment_of_exactly_the_width_stays_on_one_line() -> None:
    writer = Writer()
    writer.line("a = " + "b" * (WIDTH - 4))
    assert len(writer.lines) == 1


def test_a_call_has_one_argument_per_line() -> None:
    writer = Writer(unit="    ")
    writer.call("f(", ["a", "b"], ")")
    assert writer.lines == ["f(", "    a,", "    b,", ")"]


def test_a_table_aligns_its_notes() -> None:
    writer = Writer()
    writer.table([("int a;", "first"), ("int long_name;", "second"), ("", "")])
    assert writer.lines == ["int a;          // first", "int long_name;  // second", ""]


@pytest.mark.parametrize("width", [10, 40, 98])
def test_wrapped_text_keeps_its_words_and_width(width: int) -> None:
    text = "equal to the recipe on 12 random draws over finite fields"
    lines = wrapped(text, width)
    assert " ".join(lines) == text
    assert max(map(len, lines)) <= width


def header(*paragraphs: tuple[str, str]) -> list[str]:
    return Header("mirage-kernels generate x", "K72_fp16", paragraphs).lines("//")


def test_a_header_opens_with_the_command() -> None:
    assert header(("Formula", "a"))[0] == "// mirage-kernels generate x"


def test_a_headers_paragraphs_are_aligned() -> None:
    lines = header(("Formula", "out = a"), ("Shape", "b " * 60))
    assert lines[1:3] == ["// Formula  out = a", f"// Shape    {'b ' * 43}b"]
    assert lines[3].startswith("//          b")


def test_a_header_stays_within_the_width() -> None:
    assert max(map(len, header(("Proved", "a wrong muGraph passes " * 20)))) <= WIDTH


def entry(recipe: str, k: int) -> Entry:
    return Entry(recipe, "fp16", {"K": k, "N": 40}, f"K{k}_N40_fp16")


def test_the_table_lists_kernels_by_their_symbols() -> None:
    text = emit_table("sm_90a", [entry("b", 8), entry("a", 16), entry("a", 8)])
    rows = re.findall(r"PLAIN\((\w+), (\w+),", text)
    assert rows == [("a", "K16_N40_fp16"), ("a", "K8_N40_fp16"), ("b", "K8_N40_fp16")]


def test_the_table_does_not_depend_on_the_order_of_its_entries() -> None:
    entries = [entry("b", 8), entry("a", 16), entry("a", 8)]
    assert emit_table("sm_90a", entries) == emit_table("sm_90a", entries[::-1])


def test_a_row_of_the_table_has_all_that_a_kernel_serves_and_needs() -> None:
    text = emit_table("sm_90a", [entry("a", 8), replace(entry("b", 8), workspace=True)])
    assert '  PLAIN(a, K8_N40_fp16, fp16, 0, "", {"K", 8}, {"N", 40}) \\\n' in text
    assert '  SPACE(b, K8_N40_fp16, fp16, 0, "", {"K", 8}, {"N", 40})\n' in text
    assert "#define ATTENTION_KERNELS(ATTENTION)\n" in text
    assert '#define ARCH "sm_90a"\n' in text


def test_a_row_too_long_for_a_line_has_its_extents_on_the_next() -> None:
    text = emit_table("sm_90a", [replace(entry("a" * 40, 8), options=("bias", "weight_offset"))])
    assert '"bias weight_offset", \\\n      {"K", 8}, {"N", 40})' in text


def test_a_line_without_room_for_its_comment_parts_the_columns() -> None:
    writer = Writer()
    writer.table([("a;", "1"), ("longer;", "2"), ("b" * 98 + ";", "3"), ("c;", "4")])
    assert writer.lines == ["a;       // 1", "longer;  // 2", "b" * 98 + ";", "c;  // 4"]

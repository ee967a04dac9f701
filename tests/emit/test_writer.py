"""The line writer, the header and the dispatch table."""

from __future__ import annotations

import re
from dataclasses import replace

from mirage_kernels.generator.emit.cuda import Entry, Header, emit_table
from mirage_kernels.generator.emit.writer import WIDTH, Writer


def test_a_block_indents_its_body_and_may_close_with_nothing() -> None:
    writer = Writer()
    with writer.block("if (a) {"), writer.block("for b:", ""):
        writer.write("c();", "")
    assert writer.text() == "if (a) {\n  for b:\n    c();\n\n}\n"


def test_an_assignment_longer_than_the_width_breaks_behind_the_equals_sign() -> None:
    writer = Writer(depth=1)
    writer.write(f"const auto a = {'b' * 90};", "a = " + "b" * (WIDTH - 6))
    assert writer.lines == ["  const auto a =", f"      {'b' * 90};", f"  a = {'b' * (WIDTH - 6)}"]


def test_a_call_has_one_argument_per_line() -> None:
    writer = Writer(unit="    ")
    writer.call("f(", ["a", "b"], ")")
    assert writer.lines == ["f(", "    a,", "    b,", ")"]


def test_a_table_aligns_its_notes() -> None:
    writer = Writer()
    writer.table([("int a;", "first"), ("int long_name;", "second"), ("", "")])
    assert writer.lines == ["int a;          // first", "int long_name;  // second", ""]


def test_a_header_opens_with_the_command_and_aligns_its_paragraphs_within_the_width() -> None:
    paragraphs = [("Formula", "out = a"), ("Shape", "b " * 60)]
    lines = Header("mirage-kernels generate x", "K72_fp16", paragraphs).lines("//")
    assert lines[0] == "// mirage-kernels generate x"
    assert lines[1:3] == ["// Formula  out = a", f"// Shape    {'b ' * 43}b"]
    assert lines[3].startswith("//          b")
    assert max(map(len, lines)) <= WIDTH


def entry(recipe: str, k: int) -> Entry:
    return Entry(recipe, "fp16", {"K": k, "N": 40}, f"K{k}_N40_fp16")


def test_the_table_lists_kernels_by_their_symbols_in_whatever_order_they_come() -> None:
    entries = [entry("b", 8), entry("a", 16), entry("a", 8)]
    text = emit_table("sm_90a", entries)
    rows = re.findall(r"PLAIN\((\w+), (\w+),", text)
    assert rows == [("a", "K16_N40_fp16"), ("a", "K8_N40_fp16"), ("b", "K8_N40_fp16")]
    assert text == emit_table("sm_90a", entries[::-1])


def test_a_row_of_the_table_has_all_that_a_kernel_serves_and_needs() -> None:
    others = [replace(entry("b", 8), workspace=True), replace(entry("c", 8), reads_cache=True)]
    text = emit_table("sm_90a", [entry("a", 8), *others])
    assert '  PLAIN(a, K8_N40_fp16, fp16, 0, "", {"K", 8}, {"N", 40}) \\\n' in text
    assert '  SPACE(b, K8_N40_fp16, fp16, 0, "", {"K", 8}, {"N", 40})\n' in text
    assert "#define ATTENTION_KERNELS(ATTENTION) \\\n" in text
    assert '  ATTENTION(c, K8_N40_fp16, fp16, "", {"K", 8}, {"N", 40})\n' in text
    assert '#define ARCH "sm_90a"\n' in text


def test_a_row_too_long_for_a_line_has_its_extents_on_the_next() -> None:
    text = emit_table("sm_90a", [replace(entry("a" * 40, 8), options=("bias", "weight_offset"))])
    assert '"bias weight_offset", \\\n      {"K", 8}, {"N", 40})' in text


def test_a_line_without_room_for_its_comment_parts_the_columns() -> None:
    writer = Writer()
    writer.table([("a;", "1"), ("longer;", "2"), ("b" * 98 + ";", "3"), ("c;", "4")])
    assert writer.lines == ["a;       // 1", "longer;  // 2", "b" * 98 + ";", "c;  // 4"]

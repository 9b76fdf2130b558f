#!/usr/bin/env python3
"""Writes the tables of keys in docs/configuration.md from what the program itself says.

usage: python3 tools/make_config_doc.py KINORA [--check]

KINORA is the built program (build/kinora). With --check nothing is written: it fails if the page says
something else than the program, which the test docs.configuration_is_current uses. Python's standard
library is enough.
"""
import argparse
import difflib
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
BEGIN = "<!-- The tables from here on are written by tools/make_config_doc.py. -->\n"
END = "<!-- Up to here. -->\n"
# "train.steps: an integer >= 0 (default 1000)"; a section's own line has no indent.
KEY = re.compile(r"([a-z0-9_.]+): (.*) \((required|default (.*))\)")


def parse(help_text):
    """[(section, [(key, accepts, default, meaning)])] of `kinora train --help-config`."""
    sections = []
    entries = []  # of the current section: [first lines, meaning]
    for line in help_text.splitlines():
        text = line.strip()
        if not text:
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            entries = []
            sections.append((text, entries))
        elif indent == 2:
            if entries and not entries[-1][1]:  # a long line goes on
                entries[-1][0] += " " + text
            else:
                entries.append([text, ""])
        else:
            entries[-1][1] += (" " if entries[-1][1] else "") + text
    result = []
    for section, entries in sections:
        rows = []
        for head, meaning in entries:
            match = KEY.fullmatch(head)
            if match is None:
                sys.exit(f"make_config_doc: cannot read this line of --help-config: {head}")
            rows.append((match[1], match[2], match[4], meaning))
        result.append((section, rows))
    if not result:
        sys.exit("make_config_doc: --help-config printed no key")
    return result


def cell(text):
    """Text in a table's cell: column ends and what Markdown would take for markup are escaped."""
    return re.sub(r"([|*<\\])", r"\\\1", text)


def tables(sections):
    lines = []
    for section, rows in sections:
        lines += [f"### {section}", "", "| key | accepts | default | meaning |", "|---|---|---|---|"]
        for key, accepts, default, meaning in rows:
            shown = "required" if default is None else f"`{default}`"
            lines.append(f"| `{key}` | {cell(accepts)} | {shown} | {cell(meaning)} |")
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinora", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    command = [str(options.kinora.resolve()), "train", "--help-config"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = PAGE.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"make_config_doc: {PAGE.name} lacks one of the lines\n{BEGIN}{END}")
    wanted = before + BEGIN + "\n" + tables(parse(text)) + END + after
    if page == wanted:
        return 0
    if not options.check:
        PAGE.write_text(wanted)
        return 0
    sys.stdout.writelines(difflib.unified_diff(page.splitlines(True), wanted.splitlines(True),
                                               "docs/configuration.md", "what the program says", n=0))
    print("docs/configuration.md is behind the program: run python3 tools/make_config_doc.py build/kinora")
    return 1


if __name__ == "__main__":
    sys.exit(main())

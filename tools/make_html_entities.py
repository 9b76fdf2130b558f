#!/usr/bin/env python3
"""Writes kinora/prompts/html_entities.cc: the named character references of HTML 5.

They are those of Python's html.entities, which has them from the standard. Needs Python alone.
"""

import html.entities
import pathlib


def escaped(text):
    return "".join(f"\\{byte:03o}" for byte in text.encode())


def main():
    names = sorted(html.entities.html5.items(), key=lambda item: item[0].encode())
    rows = "\n".join(f'    {{"{name}", "{escaped(text)}"}},' for name, text in names)
    path = pathlib.Path(__file__).parents[1] / "kinora/prompts/html_entities.cc"
    path.write_text(f'''// Made by tools/make_html_entities.py.

#include "kinora/prompts/html_entities.h"

#include <algorithm>
#include <iterator>

namespace kinora::prompts {{
namespace {{

struct Entity {{
  std::string_view name;
  std::string_view text;
}};

// clang-format off
// By the bytes of their names; those of HTML 4 also do without a semicolon.
constexpr Entity kEntities[] = {{
{rows}
}};
// clang-format on

}}  // namespace

std::string_view find_html_entity(std::string_view name) {{
  const auto* const found = std::ranges::lower_bound(kEntities, name, {{}}, &Entity::name);
  return found != std::end(kEntities) && found->name == name ? found->text : std::string_view();
}}

}}  // namespace kinora::prompts
''')
    print(f"{len(names)} names in {path}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes tests/prompts/data/prompts.json: prompts as published parsers read them, captions as diffusers
cleans them.

Needs diffusers (0.42 was used), torch, transformers, ftfy (6.3), beautifulsoup4 (4.15), compel and
pyparsing; and examples/community/lpw_stable_diffusion.py of diffusers' repository, whose parser of
brackets is taken out of it: make_prompt_fixtures.py PATH.
"""

import argparse
import ast
import json
import pathlib
import re

import bs4  # noqa: F401  (PixArt's cleaning wants it; without it nothing is cleaned)
import ftfy  # noqa: F401
from compel.prompt_parser import PromptParser
from diffusers import PixArtAlphaPipeline
from diffusers.pipelines.wan.pipeline_wan import prompt_clean

BRACKETS = [
    "normal text", "", "an (important) word", "(unbalanced", "un)balanced]", "\\(literal\\]",
    "(unnecessary)(parens)", "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).", "[less] and [[lesser]]",
    "a (b:1.5", "time 12:30 (now:+0.7)", "(a:-1) b", "([mixed]) [(mixed)]", "a\\\\b \\x", "(a:1.2:1.3)", "::", "(:1.3)",
    "()", "(a (b:2) c:0.5) d", "(\u00e4rmel:1.25) \u732b", "[open (both", "(a:.5)", "(a: 1.3)", "a:1.3)", "(a)b(c))",
]
SIGNS = [
    "a red++ ball", "a (red ball)++ on grass", "word--", "semi-realistic style", "(a (b)+ c)+",
    "(phrase)1.3 x", "a+ b- c", "hot-dog+ stand", "\\(escaped\\) yes", "(a)", "((a))", "a++, b", "c++",
    "1.5+", "(a,b)-- c", "foo+bar", "unclosed (x", "x )y", "(word)-", "+ alone", "a ++", '"quoted"++',
    "(red)1.2,blue", "h\u00e9llo+", "a(b)+c", "(a b)0.5(c)1.2", "", "plain words here", "(deep (deeper (deepest)++)-)1.5 end",
]
CAPTIONS = [
    "A small cactus with a happy face in the Sahara desert.", "<p>Hello <b>World</b></p>", "",
    "Photo of a cat &amp; a dog &quot;friends&quot; &eacute;t&eacute; &#228;&#x2019;s",
    "visit https://www.example.com/some/path?x=1 now", "see example.org/page or mail me@host.com",
    "<PERSON> standing at the sea", "@nickname says hi to @other_1", "\u4e00\u732b sits on a mat \u30ab\u30bf\u30ab\u30ca",
    "dash \u2014 and \u2013 and \u301c wave", "\u00abquoted\u00bb \u201ctext\u201d \u2018single\u2019 `tick`",
    "server 192.168.0.1 is up", "article 3:45 ", "line\\nbreak here", "#123 #12345 1234567 numbers",
    "my_photo.jpg and image-2.PNG of things", '"""AUSVERKAUFT"""', "wait... what", "***SALE*** #SALE {now} [today] (only)",
    "word . other", "this-is-my-cute-cat", "this_is_my_cute_cat photo", "two-part name", "\ufb01ne \ufb02ower \uff26\uff35\uff2c\uff2c\u3000width",
    "jc6640 jc6640vc 6640vc231", "Free worldwide shipping today", "free download free of it", "click for details", "click on this",
    "png images and jpg image", "page 12 of 30", "j2d1a2a code", "30x40 and 1.5\u00d72.5 cm", "colon : spaced", "a,b.c/d",
    "'quoted whole'", "-leading dash", "trailing-", ".hidden", "spaces   and\ttabs\nand lines", "100%25 sure+really",
    "<script>var a = 1;</script>text", "<style>p{}</style>after", "a <!-- comment --> b", "3 < 4 and 5 > 2", "<3 hearts",
    "<img src='a.png' alt=\"x > y\"> caption", "&notaname; stays", "&lt;b&gt;escaped&lt;/b&gt;", "caf\u0065\u0301 decomposed",
    "\u041a\u0440\u0430\u0441\u043d\u044b\u0439 \u0448\u0430\u0440", "UPPER CASE \u00c4\u00d6\u00dc", "50\u00bd\u00b0 \u00a9 \u2122", "emoji \U0001f600 here",
    "An extreme close-up of a gray-haired man with a beard in his 60s, he is deep in thought.",
    "A soaring drone footage captures the majestic beauty of a coastal cliff, its red and yellow stratified rock faces.",
    "http://a.b and www.foo.com, ftp too", "e.g. this, i.e. that", "a&b at&t r&amp;d", "x\u2028y\u0085z", "x\u200by zero width",
    "\u0130stanbul", "caption\x07with\x00control", "\\_(\u30c4)_/", "1:23 ", "tag <br/> self <hr> closing", "a </b> b </ c> d",
]


def brackets_parser(path):
    """The two definitions that are wanted, without the pipeline around them."""
    tree = ast.parse(path.read_text())
    wanted = [node for node in tree.body
              if isinstance(node, ast.FunctionDef) and node.name == "parse_prompt_attention"
              or isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "re_attention"]
    space = {"re": re}
    exec(compile(ast.Module(wanted, []), str(path), "exec"), space)
    return space["parse_prompt_attention"]


def signs(prompt):
    parsed = PromptParser().parse_conjunction(prompt)
    assert len(parsed.prompts) == 1, prompt
    return [[fragment.text, fragment.weight] for fragment in parsed.prompts[0].children]


def cleaner():
    pipeline = PixArtAlphaPipeline.__new__(PixArtAlphaPipeline)
    return lambda text: PixArtAlphaPipeline._clean_caption(pipeline, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("brackets", type=pathlib.Path, help="lpw_stable_diffusion.py")
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parents[2] / "tests/prompts/data/prompts.json")
    arguments = parser.parse_args()
    parse_brackets = brackets_parser(arguments.brackets)
    clean = cleaner()
    records = {
        "brackets": [[text, parse_brackets(text)] for text in BRACKETS],
        "signs": [[text, signs(text)] for text in SIGNS],
        "captions": [[text, clean(text), clean(clean(text))] for text in CAPTIONS],
        "tidied": [[text, prompt_clean(text)] for text in CAPTIONS],
    }
    rows = ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(record) for record in of) + "\n]"
                      for name, of in records.items())
    arguments.out.write_text("{\n" + rows + "\n}\n")
    print(", ".join(f"{len(of)} {name}" for name, of in records.items()), "in", arguments.out)


if __name__ == "__main__":
    main()

"""Texts to compare tokenizers with: captions, all scripts, emoji, control characters, broken UTF-8.

texts(count, seed) gives the same ones in every run of one Python version.
"""
import random
import sys
import unicodedata

ADJECTIVES = """small red shiny ancient blue quiet foggy golden broken tiny photorealistic 4K hand-drawn
black-and-white low-poly cinematic dusty neon wooden underwater snow-covered half-open""".split()
NOUNS = """circle square dog astronaut castle teapot bicycle lighthouse street market violin mountain river
robot face portrait skyline cathedral jellyfish train station's cat's sunset forest""".split()
VERBS = "running sitting floating standing dancing reading looking jumping flying burning".split()
PLACES = """left right in front of|behind|next to|on top of|under|inside|far away from|to the left of|to the
right of""".replace("\n", " ").split("|")
STYLES = """, trending on artstation|, 35mm photograph, f/1.8|. It's 8:30 a.m.; we're late!|, oil on canvas (1887)
| -- "don't look up" --|, highly detailed, sharp focus, 50% grey|\ttab separated|  two  spaces |, aesthetic score: 6.5
|, motion score: 12.25, camera motion: pan_left.|...|?!| #hashtag @someone https://example.com/a?b=c&d=1""".split("|")
SENTENCES = """All human beings are born free and equal in dignity and rights.
Alle Menschen sind frei und gleich an Würde und Rechten geboren.
Tous les êtres humains naissent libres et égaux en dignité et en droits.
Todos los seres humanos nacen libres e iguales en dignidad y derechos.
Все люди рождаются свободными и равными в своем достоинстве и правах.
Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.
人人生而自由,在尊严和权利上一律平等。
すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.
يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.
כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.
İnsanlar hür, haysiyet ve haklar bakımından eşit doğarlar; ŞİİR.
ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.""".split("\n")
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️‍🔥", "👩🏾‍🚀", "1️⃣", "🧑🏻‍🤝‍🧑🏿", "☃", "⌚️"]
SPECIALS = ["<|endoftext|>", "<|startoftext|>", "</s>", "<pad>", "<extra_id_0>", "<s>", "<unk>", "<|im_start|>",
            "<|ENDOFTEXT|>", "< /s>", "<0x41>", "▁", "▁▁the", "Ġthe", "</w>"]
CONTROLS = [chr(c) for c in (*range(0x20), *range(0x7F, 0xA1), 0xAD, 0x180E, *range(0x2000, 0x2010), 0x2028, 0x2029,
                            0x202F, 0x205F, 0x2060, 0x3000, 0xFE0F, 0xFEFF, 0xFFFD, 0xFFFE, 0x10FFFF)]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
          b"\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x28\xa1"]


def assigned():
    """Code points that Unicode 14 and this Python both know, by the first word of their names (their script)."""
    scripts = {}
    for code in range(0xA0, sys.maxunicode + 1):
        if unicodedata.category(chr(code)) in ("Cn", "Cs", "Co", "Cc"):
            continue
        name = unicodedata.name(chr(code), "OTHER")
        word = name.split()[0].split("-")[0]
        scripts.setdefault(word, []).append(chr(code))
    return [characters for _, characters in sorted(scripts.items())]


def caption(rng):
    text = f"{rng.choice(['a', 'A', 'the', 'two', '3'])} {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if rng.random() < 0.7:
        text += f" {rng.choice(VERBS)} {rng.choice(PLACES)} a {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if rng.random() < 0.5:
        text += rng.choice(STYLES)
    if rng.random() < 0.1:
        text = text.title() if rng.random() < 0.5 else text.upper()
    return text


def scripts_text(rng, scripts):
    words = []
    for _ in range(rng.randint(1, 12)):
        characters = rng.choice(scripts)
        words.append("".join(rng.choice(characters) for _ in range(rng.randint(1, 8))))
    return rng.choice(["", " ", " ", "  ", "\n"]).join(words)


def mixed(rng, scripts):
    parts = [caption, lambda r: r.choice(SENTENCES), lambda r: r.choice(EMOJI), lambda r: r.choice(CONTROLS),
             lambda r: r.choice(SPECIALS), lambda r: scripts_text(r, scripts), lambda r: str(r.randint(0, 10**9)),
             lambda r: " " * r.randint(1, 9), lambda r: "\n" * r.randint(1, 3),
             lambda r: "e\u0301" if r.random() < 0.5 else "o\u0323\u0302\u0301", lambda r: "ﬁ½Å①ｶﾞ㌔"]
    return "".join(rng.choice(parts)(rng) for _ in range(rng.randint(1, 12)))


def texts(count, seed=0):
    """`count` texts as bytes: 60 % captions, 10 % sentences, the rest harder ones."""
    rng = random.Random(seed)
    scripts = assigned()
    made = [b"", b" ", b"\n", b"a", b"  a  ", b"\x00"]
    while len(made) < count:
        kind = rng.random()
        if kind < 0.6:
            text = caption(rng)
        elif kind < 0.7:
            text = " ".join(rng.choice(SENTENCES) for _ in range(rng.randint(1, 3)))
        elif kind < 0.8:
            text = scripts_text(rng, scripts)
        elif kind < 0.9:
            text = mixed(rng, scripts)
        elif kind < 0.93:
            text = "".join(rng.choice(EMOJI + [" "]) for _ in range(rng.randint(1, 20)))
        elif kind < 0.96:
            text = "".join(rng.choice(CONTROLS + ["a", "b ", " "]) for _ in range(rng.randint(1, 30)))
        elif kind < 0.961:  # long
            text = rng.choice([" ", "", ", "]).join(mixed(rng, scripts) for _ in range(rng.randint(20, 200)))
        elif kind < 0.9612:  # one long word
            text = rng.choice(["a", "ab", "é", "!", " ", "한", "9"]) * rng.randint(1000, 20000)
        else:  # broken
            bytes_ = bytearray(mixed(rng, scripts).encode())
            for _ in range(rng.randint(1, 3)):
                at = rng.randint(0, len(bytes_))
                bytes_[at:at + rng.randint(0, 2)] = rng.choice(BROKEN)
            made.append(bytes(bytes_))
            continue
        made.append(text.encode())
    return made[:count]

"""Recipes must be accepted and take a step; what a page points to must be there, and what a page
lists of the code must be what the code has.

usage: python3 docs_test.py KINORA
"""
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINORA = None
RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))
# Everything that costs time made small; the rest of a recipe stays as it is.
SMALL = ["train.global_batch=2", "train.micro_batch=1", "train.device=cpu", "train.threads=1",
         'autoencoder.path=""']
SMALL_TRANSFORMER = ["model.depth=1", "model.hidden=192"]
SMALL_CLIPS = ["model.height=16", "model.width=24", "data.height=128", "data.width=192"]
SMALL_MODELS = {name: ["model.unet.channels=[32, 32, 32]"] for name in ("scenes-unet",)}
SMALL_PICTURES = ["model.height=16", "model.width=16", "data.height=128", "data.width=128"]
for name in ("pretrain", "finetune", "lora", "lora-8gb", "dreambooth", "textual-inversion", "controlnet", "inpaint",
             "edit"):
    SMALL_MODELS["sd15-" + name] = ["model.unet.channels=[32, 32, 32, 32]", *SMALL_PICTURES]
SMALL_MODELS["imagenet-256-class-unet"] = ["model.unet.channels=[32, 32, 32, 32]"]
SMALL_MODELS["faces-256-unet"] = ["model.unet.channels=[32, 32, 32, 32]", "model.unet.heads=[1, 1, 1, 1]"]
SMALL_MODELS["sd15-textual-inversion"] += ["model.text_encoder.layers=1"]
SMALL_MODELS["sdxl-lora-24gb"] = ["model.unet.channels=[32, 64, 64]", "model.unet.heads=[2, 2, 2]",
                                 "model.unet.depths=[0, 1, 1]", "model.unet.middle_depth=1", *SMALL_PICTURES]


SMALL_MODELS["flux-lora"] = ["model.depth=1", "model.parallel_depth=1", "model.hidden=192", "model.heads=6",
                            "model.rotary_axes=[4, 14, 14]", *SMALL_PICTURES]
SMALL_MODELS["sd3-lora"] = ["model.depth=1", "model.second_attention=[0]", "model.hidden=192", "model.heads=3",
                           *SMALL_PICTURES]
for name in ("opensora2-256px", "opensora2-i2v"):
    SMALL_MODELS[name] = ["model.depth=1", "model.parallel_depth=1", "model.hidden=192", "model.heads=6",
                          "model.rotary_axes=[4, 14, 14]", "model.frames=3", "data.frames=9", "data.buckets={}",
                          *SMALL_CLIPS]


SMALL_MODELS["clips-mmdit-reference"] = ["model.depth=1", "model.parallel_depth=1", "model.hidden=96", "model.heads=4"]
SMALL_MODELS["hunyuan-video-lora"] = ["model.depth=1", "model.parallel_depth=1", "model.refiner_depth=1",
                                     "model.hidden=192", "model.heads=6", "model.rotary_axes=[4, 14, 14]", *SMALL_CLIPS]
SMALL_MODELS["cogvideox-lora"] = ["model.heads=4", "model.time_channels=64", *SMALL_TRANSFORMER, *SMALL_CLIPS]
SMALL_MODELS["wan-lora"] = [*SMALL_TRANSFORMER, *SMALL_CLIPS]
SMALL_MODELS["ltx-lora"] = [*SMALL_TRANSFORMER, "model.height=4", "model.width=6", "data.height=128", "data.width=192"]
SMALL_MODELS["wan-i2v-lora"] = ["model.heads=4", *SMALL_TRANSFORMER, *SMALL_CLIPS]


def bench(recipe, *overrides):
    small = SMALL + SMALL_MODELS.get(recipe.stem, SMALL_TRANSFORMER)
    if recipe.stem.startswith("opensora-"):
        small += SMALL_CLIPS
    return subprocess.run(
        [KINORA, "bench", "train", str(recipe), *small, *overrides, "--warmup", "0", "--steps", "1",
         "--json"], capture_output=True, text=True)


class RecipesTest(unittest.TestCase):

    def test_every_recipe_takes_a_step(self):
        self.assertTrue(RECIPES)
        for recipe in RECIPES:
            with self.subTest(recipe.name):
                run = bench(recipe)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertGreater(json.loads(run.stdout)["last_loss"], 0)

    def test_a_recipe_with_a_wrong_key_is_refused(self):
        run = bench(RECIPES[0], "train.stpes=1")
        self.assertEqual(run.returncode, 2)
        self.assertIn("did you mean train.steps?", run.stderr)

    def test_commands_in_a_recipe_name_its_own_files(self):
        for recipe in RECIPES:
            with self.subTest(recipe.name):
                text = recipe.read_text()
                for named in re.findall(r"\bconfigs/[\w-]+\.yaml", text):
                    self.assertEqual(named, f"configs/{recipe.name}")
                self.assertIn(f"  dir: runs/{recipe.stem}\n", text)


def without_code(page):
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


class PagesTest(unittest.TestCase):

    def test_links_lead_somewhere(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", without_code(page)):
                if not re.match(r"[a-z]+:", target):
                    self.assertTrue((page.parent / target).exists(), f"{page.name}: {target}")

    def test_anchors_are_headings(self):
        def anchors(page):
            return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
                    for heading in re.findall(r"^#+ (.*)", without_code(page), flags=re.MULTILINE)}

        for page in PAGES:
            for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
                if not re.match(r"[a-z]+:", target):
                    named = page.parent / target if target else page
                    self.assertIn(anchor, anchors(named), f"{page.name}: {target}#{anchor}")

    def test_recipes_that_pages_name_are_there(self):
        for page in PAGES:
            for named in re.findall(r"\bconfigs/[\w-]+\.yaml", page.read_text()):
                self.assertTrue((ROOT / named).exists(), f"{page.name}: {named}")


def text_of(path):
    return (ROOT / path).read_text()


def section(page, heading):
    """The text of `page` below `heading`, up to the next heading."""
    _, found, rest = text_of(page).partition(f"\n{heading}\n")
    if not found:
        raise AssertionError(f"{page} has no {heading}")
    return re.split(r"\n#+ ", rest)[0]


def rows(text):
    """The cells of a page's tables, without their heads and rules."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in text.splitlines() if line.startswith("|")]
    rules = {i for i, row in enumerate(cells) if set(row[0]) == {"-"}}
    return [row for i, row in enumerate(cells) if i not in rules and i + 1 not in rules]


def sources(*tops):
    """The text of every file below `tops`, for patterns; pages are none."""
    paths = [path for top in tops for path in sorted((ROOT / top).rglob("*"))]
    paths += [ROOT / top for top in tops if (ROOT / top).is_file()]
    kinds = (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt", "")
    return "\n".join(path.read_text(errors="replace") for path in paths
                     if path.is_file() and path.suffix in kinds)


class HouseTest(unittest.TestCase):
    """docs/architecture.md against the folders and the includes' rules."""

    PAGE = "docs/architecture.md"
    HEADING = "## The house: floors, and one arrow down"

    def floors(self):
        spec = importlib.util.spec_from_file_location("rules", ROOT / "scripts/check_includes.py")
        rules = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(rules)
        rooms = {path.name for path in (ROOT / "kinora").iterdir() if path.is_dir()}
        return {room: rules.FLOORS[room] for room in rooms}

    def test_the_table_lists_every_room_on_its_floor(self):
        listed = {room.strip("`/"): int(floor)
                  for floor, room, _ in rows(section(self.PAGE, self.HEADING))}
        self.assertEqual(listed, self.floors())

    def test_the_diagram_shows_every_room_on_its_floor(self):
        drawn = {}
        for line in section(self.PAGE, self.HEADING).splitlines():
            if match := re.fullmatch(r"floor (\d+) (.*)", line):
                drawn.update({room: int(match[1]) for room in match[2].split()})
        self.assertEqual(drawn, self.floors())


class RandomPurposesTest(unittest.TestCase):

    def test_the_table_lists_every_purpose_with_its_number(self):
        enumeration = re.search(r"enum class RandomPurpose[^{]*\{(.*?)\};",
                                text_of("kinora/core/philox.h"), re.DOTALL)[1]
        known = {name: int(number) for name, number in re.findall(r"(k\w+) = (\d+)", enumeration)}
        self.assertTrue(known)
        listed = {row[1].strip("`"): int(row[0])
                  for row in rows(section("docs/architecture.md", "## Random numbers"))
                  if row[0].isdigit()}
        self.assertEqual(listed, known)


class ErrorsTest(unittest.TestCase):

    PAGE = "docs/configuration.md"

    def setUp(self):
        code = sources("apps/kinora", "kinora/train/watchdog.h")
        self.constants = {name: int(value) for name, value in
                          re.findall(r"constexpr int (k\w+) = (\d+);", code)
                          if name.startswith("kExit") or name.endswith("Code")}
        report = text_of("apps/kinora/options/user_error.cc")
        returned = re.findall(r"case ErrorKind::(k\w+):\s*return ([\w:]+);", report)
        self.codes = {kind: self.constants.get(value.split("::")[-1]) or int(value)
                      for kind, value in returned}
        self.names = dict(re.findall(r'case ErrorKind::(k\w+):\s*return "(\w+)";',
                                     text_of("kinora/core/error.cc")))

    def test_the_table_lists_every_kind_with_its_code(self):
        self.assertEqual(self.codes.keys(), self.names.keys())
        listed = {row[1].strip("`"): int(row[0])
                  for row in rows(section(self.PAGE, "## Exit codes")) if row[1]}
        self.assertEqual(listed, {self.names[kind]: code for kind, code in self.codes.items()})

    def test_the_table_lists_every_code(self):
        listed = {int(row[0]) for row in rows(section(self.PAGE, "## Exit codes"))}
        self.assertEqual(listed, {0, *self.codes.values(), *self.constants.values()})


class EnvironmentTest(unittest.TestCase):

    SECTION = ("docs/configuration.md", "## Environment variables")

    def setUp(self):
        self.pages = "\n".join(page.read_text() for page in PAGES)
        self.program = sources("kinora", "apps")
        self.scripts = sources("scripts", ".ci", "Makefile", "cmake", "CMakeLists.txt")
        self.others = sources("tests", "bench", "examples", "tools")

    def assert_named(self, variables, text):
        self.assertTrue(variables)
        for name in sorted(set(variables)):
            with self.subTest(name):
                self.assertRegex(text, rf"\b{name}\b", f"no page names {name}")

    def test_the_section_names_what_the_program_reads(self):
        self.assert_named(re.findall(r'\bgetenv\("(\w+)"\)', self.program)
                          + re.findall(r'"(KINORA_[A-Z_]+)=?"', self.program),
                          section(*self.SECTION))

    def test_pages_name_what_scripts_and_tests_read(self):
        self.assert_named(re.findall(r"\$\{?(KINORA_[A-Z_]+)", "\n".join(
            path.read_text() for path in sorted((ROOT / "scripts").glob("*.sh"))))
            + re.findall(r"\$ENV\{(KINORA_[A-Z_]+)\}", self.scripts)
            + re.findall(r'(?:getenv|environ\.get)\("(KINORA_[A-Z_]+)"\)', self.others), self.pages)

    def test_code_has_what_pages_name(self):
        everything = self.program + self.scripts + self.others
        for name in sorted(set(re.findall(r"\bKINORA_[A-Z_]+\b", self.pages))):
            with self.subTest(name):
                self.assertRegex(everything, rf"\b{name}\b", f"nothing reads {name}")

    def test_code_has_what_the_table_lists(self):
        table = rows(section(*self.SECTION))
        for name in re.findall(r"`([A-Z_]+)", "\n".join(row[0] for row in table)):
            with self.subTest(name):
                self.assertRegex(self.program, rf"\b{name}\b", f"nothing reads {name}")


if __name__ == "__main__":
    KINORA = sys.argv.pop()
    unittest.main()

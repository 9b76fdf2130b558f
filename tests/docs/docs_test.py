"""Recipes must be accepted and take a step; what a page points to must be there.

usage: python3 docs_test.py KINORA
"""
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
SMALL = ["model.depth=1", "model.hidden=192", "train.global_batch=2", "train.micro_batch=1",
         "train.device=cpu", "train.threads=1"]


def bench(recipe, *overrides):
    return subprocess.run(
        [KINORA, "bench", "train", str(recipe), *SMALL, *overrides, "--warmup", "0", "--steps", "1",
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


class PagesTest(unittest.TestCase):

    def test_links_lead_somewhere(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
                if not re.match(r"[a-z]+:", target):
                    self.assertTrue((page.parent / target).exists(), f"{page.name}: {target}")

    def test_recipes_that_pages_name_are_there(self):
        for page in PAGES:
            for named in re.findall(r"\bconfigs/[\w-]+\.yaml", page.read_text()):
                self.assertTrue((ROOT / named).exists(), f"{page.name}: {named}")


if __name__ == "__main__":
    KINORA = sys.argv.pop()
    unittest.main()

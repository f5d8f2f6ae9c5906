"""The site: links, navigation, the generated reference, and errors of a build."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from docs.generator import navigation, stage
from docs.generator.build import SiteError, build, check_hosts
from docs.generator.docstrings import convert as convert_docstring
from docs.generator.reference import api, environment, events, json_output, metrics, reference_pages
from docs.generator.reference.recipes import summary
from tests.cli.test_json_output import COMMANDS_WITH_JSON
from tests.support.cli.command import cotswold

from cotswold.cli.main import COMMANDS
from cotswold.recipe import Recipe, shipped_names
from cotswold.recipe.field_types import sections_in
from cotswold.recipe.schema import Section

ROOT = Path(__file__).parents[2]
REGISTERED = re.compile(r'(?:gauge|counter)\(\s*"(\w+)"')
ANCHOR = "one-kernel-for-three-products"


@pytest.fixture(scope="module")
def pages() -> Mapping[str, str]:
    return reference_pages()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with a front page, a folder of assets, and the settings of the site."""
    shutil.copytree(ROOT / "docs" / "assets", tmp_path / "docs" / "assets")
    for name in stage.REQUIRED:
        (tmp_path / name).write_text(f"# {name}\n")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    settings["nav"] = [{"Home": "index.md"}, {"Project": ["project/"]}, {"Reference": ["reference/"]}]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    (tmp_path / "src").symlink_to(ROOT / "src")
    return tmp_path


def built(root: Path, text: str, generated: Mapping[str, str] | None = None) -> str:
    """Build a site with one front page, and return its text in HTML."""
    (root / "README.md").write_text(text)
    build(root, root / "build", root / "site", generated or {})
    return (root / "site" / "index.html").read_text()


class TestPages:
    @pytest.mark.slow
    def test_a_site_needs_no_other_host_and_searches_without_a_server(self, small: Path) -> None:
        reference = {"reference/nn.md": "# nn\n\n::: cotswold.nn.L2Pool2d\n"}
        html = built(small, "# Front\n\nText with a [link](CHANGELOG.md).\n", reference)
        assert 'href="project/changelog.html"' in html
        assert 'src="./assets/iframe-worker.js"' in html
        assert (small / "site" / "search.js").read_text().startswith("var __index")
        assert not re.search(r"(?:src|href)=\"https?://(?:unpkg|cdn|fonts)", html)
        generated = (small / "site" / "reference" / "nn.html").read_text()
        assert 'id="cotswold.nn.L2Pool2d"' in generated and "Parameters:" in generated

    @pytest.mark.slow
    def test_links_and_references_that_lead_nowhere_end_the_build(self, small: Path) -> None:
        text = "# Front\n\n[anchor](CHANGELOG.md#nowhere), [reference][cotswold.nowhere]\n"
        with pytest.raises(SiteError, match=r"(?s)repair these") as raised:
            built(small, text)
        assert "anchor does not exist" in str(raised.value) and "cotswold.nowhere" in str(raised.value)

    @pytest.mark.slow
    def test_an_unknown_name_in_the_reference_ends_the_build(self, small: Path) -> None:
        with pytest.raises(SiteError, match="NoSuchLayer"):
            built(small, "# Front\n", {"reference/nn.md": "# nn\n\n::: cotswold.nn.NoSuchLayer\n"})

    def test_a_link_to_a_missing_page_ends_the_build(self, small: Path) -> None:
        with pytest.raises(SiteError, match=r"README\.md links to nowhere\.md"):
            built(small, "# Front\n\n[page](nowhere.md)\n")

    @pytest.mark.parametrize(
        "tag",
        [
            '<img alt="" src="https://example.org/picture.svg">',
            '<script src="//example.org/program.js">',
            '<link rel="stylesheet" href="https://example.org/font.css">',
        ],
    )
    def test_a_file_of_another_host_ends_the_build(self, tag: str, tmp_path: Path) -> None:
        (tmp_path / "page.html").write_text(f'<a href="https://example.org">allowed</a>{tag}')
        with pytest.raises(SiteError, match=r"page\.html loads from another host: .*example\.org"):
            check_hosts(tmp_path)


class TestLinks:
    def link(self, target: str, source: str = "docs/python.md", root: Path = ROOT) -> str:
        places = {file: place for place, file in stage.page_sources(root)}
        link = stage._linker(root, self.pages, source, places[source], places)
        return link(target)

    @pytest.fixture(autouse=True)
    def _pages(self, tmp_path: Path) -> None:
        self.pages = tmp_path

    @pytest.mark.parametrize(
        ("source", "target", "found"),
        [
            ("docs/python.md", "layers.md#memory", "layers.md#memory"),
            ("docs/python.md", "../CONTRIBUTING.md#an-optimiser", "project/contributing.md#an-optimiser"),
            ("README.md", "docs/kernels.md", "kernels.md"),
            ("docs/python.md", "../examples/", "examples/index.md"),
            ("docs/python.md", "#train", "#train"),
            ("docs/python.md", "https://example.org/a#b", "https://example.org/a#b"),
        ],
    )
    def test_a_link_leads_to_the_page_on_the_site(self, source: str, target: str, found: str) -> None:
        assert self.link(target, source) == found

    def test_a_link_to_a_file_leads_to_a_copy(self) -> None:
        assert self.link("../benchmarks/results/simulate.json", "docs/simulate.md") == (
            "files/benchmarks/results/simulate.json"
        )
        copy = self.pages / "files" / "benchmarks" / "results" / "simulate.json"
        assert copy.read_bytes() == (ROOT / "benchmarks" / "results" / "simulate.json").read_bytes()

    @pytest.mark.parametrize("target", ["nowhere.md", "../../outside.md", "../src/", "reference/events.md"])
    def test_a_link_that_leads_nowhere_names_its_page(self, target: str) -> None:
        with pytest.raises(SiteError, match=rf"docs/python.md links to {re.escape(target)}"):
            self.link(target)

    def test_every_link_of_the_repository_is_converted(self, tmp_path: Path) -> None:
        stage.stage(ROOT, tmp_path / "pages", {})
        assert f"{{ #{ANCHOR} }}" in (tmp_path / "pages" / "kernels.md").read_text()

    def test_code_keeps_its_brackets(self) -> None:
        text = "Use `a](b)` and\n\n```\n[x](y)\n```\n\n    [x](y)\n"
        assert stage.convert(text, lambda target: "changed") == text

    def test_equal_headings_have_the_anchors_of_github(self) -> None:
        found = stage.convert("## On a `run`\n## On a run\n", lambda target: target)
        assert found == "## On a `run` { #on-a-run }\n## On a run { #on-a-run-1 }\n"

    def test_lists_are_those_that_github_shows(self) -> None:
        found = stage.convert("Text:\n- one\n  - inner\n\n  more\nEnd", lambda target: target)
        assert found == "Text:\n\n- one\n    - inner\n\n    more\nEnd"


class TestNavigation:
    def make(self, folder: Path, *names: str) -> None:
        for name in names:
            stage.write(folder / name, "# Page\n")

    def test_a_folder_stands_for_its_pages_that_no_other_entry_lists(self, tmp_path: Path) -> None:
        self.make(tmp_path, "a/b.md", "a/c.md", "a/d/e.md", "a/d/f.md")
        found = navigation.expand([{"A": ["a/c.md", "a/"]}, {"D": ["a/d/f.md", "a/d/"]}], tmp_path)
        assert found == [{"A": ["a/c.md", "a/b.md"]}, {"D": ["a/d/f.md", "a/d/e.md"]}]

    @pytest.mark.parametrize("entry", ["tutorials/pinn.md", {"Kernels": "tutorials/pinn.md"}])
    def test_a_missing_page_is_an_error(self, entry: navigation.Entry, tmp_path: Path) -> None:
        with pytest.raises(SiteError, match=r"lists tutorials/pinn\.md, which does not exist"):
            navigation.expand([{"Tutorials": [entry]}], tmp_path)

    def test_a_page_without_an_entry_is_an_error(self, tmp_path: Path) -> None:
        self.make(tmp_path, "orphan.md")
        with pytest.raises(SiteError, match=r"no menu of the site leads to orphan\.md"):
            navigation.expand([], tmp_path)

    def test_every_page_of_the_site_has_an_entry(self, tmp_path: Path, pages: Mapping[str, str]) -> None:
        for place, _ in stage.page_sources(ROOT):
            self.make(tmp_path, place)
        self.make(tmp_path, *(place for place in pages if place.endswith(".md")))
        titles = [
            next(iter(entry)) for entry in navigation.expand(_nav(), tmp_path) if isinstance(entry, dict)
        ]
        assert titles == ["Home", "Tutorials", "How-to", "Reference", "Explanation"]


def _nav() -> list[navigation.Entry]:
    nav: list[navigation.Entry] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    return nav


class TestReference:
    def test_the_list_of_pages_is_complete(self, pages: Mapping[str, str]) -> None:
        linked = set(re.findall(r"\]\(([\w./-]+)\)", pages["reference/index.md"]))
        inside = {place.removeprefix("reference/") for place in pages} - {"index.md"}
        assert {place for place in inside if not re.search(r"^(?:api|commands)/(?!index)", place)} <= linked

    def test_every_public_name_has_its_place(self, pages: Mapping[str, str]) -> None:
        import cotswold

        text = pages["reference/api/cotswold.md"]
        assert all(f"::: cotswold.{name}\n" in text for name in api.public_names(cotswold))
        assert "::: cotswold.nn.LocallyConnected2d\n" in pages["reference/api/nn.md"]
        assert "::: cotswold.errors.UserError\n" in pages["reference/api/errors.md"]

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_its_page(self, command: str, pages: Mapping[str, str]) -> None:
        text = pages[f"reference/commands/{command}.md"]
        assert text.startswith(f"# cotswold {command}\n") and f"cotswold {command}" in text.partition("\n")[2]
        assert text.count("```") % 2 == 0

    def test_options_and_examples_of_commands_are_shown(self, pages: Mapping[str, str]) -> None:
        text = pages["reference/commands/train.md"]
        assert "`--restarts INT`" in text and "\ncotswold train [OPTIONS] [RECIPE]\n" in text
        assert "```console\ncotswold train demo\n" in text
        assert "## cotswold cluster drain" in pages["reference/commands/cluster.md"]

    def test_every_field_of_a_recipe_is_explained(self, pages: Mapping[str, str]) -> None:
        text = pages["reference/recipe-fields.md"]
        names = set(fields(Recipe))
        assert len(names) > 100
        assert [
            name for name in names if not re.search(rf"(?:^`{name}` = |\b{name}\b.*: as for)", text, re.M)
        ] == []

    def test_the_schema_is_that_of_recipes(self, pages: Mapping[str, str]) -> None:
        assert json.loads(pages["reference/recipe.schema.json"]) == Recipe.model_json_schema()

    def test_shipped_recipes_are_shown(self, pages: Mapping[str, str]) -> None:
        text = pages["reference/shipped-recipes.md"]
        assert all(f"## `{name}` " in text for name in shipped_names())

    def test_the_list_of_recipes_says_what_each_trains(self, pages: Mapping[str, str]) -> None:
        text = pages["reference/shipped-recipes.md"]
        rows = dict(re.findall(r"^\| \[`([\w.-]+)`\]\(\S+\) \| ([^|]*) \|", text, re.M))
        assert list(rows) == shipped_names()
        assert rows["faces-control"] == (
            "The control of `faces`: the same network, trained on the same images without any faces."
        )
        assert all(each.endswith(".") for each in rows.values())

    @pytest.mark.parametrize("text", ["name = 'a'\n", "# no sentence\n\nname = 'a'\n", "# first, then.\n"])
    def test_a_recipe_that_does_not_say_what_it_trains_is_an_error(self, text: str) -> None:
        with pytest.raises(SiteError, match=r"begin mine\.toml with a comment"):
            summary(text, "mine")

    def test_every_metric_has_its_labels_and_text(self, pages: Mapping[str, str]) -> None:
        text = pages["reference/metric-names.md"]
        found = [*metrics.run_families(), *metrics.data_families()]
        assert len(found) > 50 and [each.name for each in found if not each.values] == []
        assert "| `cotswold_replica_samples_total` | counter | `replica` |" in text
        for module in ("run/prometheus/run_metrics.py", "api/servers/data_server_metrics.py"):
            source = (ROOT / "src" / "cotswold" / module).read_text()
            assert [name for name in REGISTERED.findall(source) if f"`cotswold_{name}`" not in text] == []

    def test_exit_codes_are_those_of_errors(self, pages: Mapping[str, str]) -> None:
        text = pages["reference/errors-and-exit-codes.md"]
        assert "| 75 | a rank of a grid, or a replica under a launcher, ended because another rank" in text
        assert re.search(r"RecipeError`\]\(\S+\) \| 2 \|", text)

    def test_formats_state_their_numbers(self, pages: Mapping[str, str]) -> None:
        assert "Module: `cotswold.checkpoint.manifest`. Format: `1`." in pages["reference/file-formats.md"]


class TestEnvironmentVariables:
    def test_they_are_those_that_the_source_reads(self) -> None:
        environment.check()

    def test_one_without_a_meaning_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(environment.VARIABLES["Kernels"], "COTSWOLD_KERNELS")
        with pytest.raises(SiteError, match="state the meaning of COTSWOLD_KERNELS in"):
            environment.check()

    def test_one_that_nothing_reads_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(environment.VARIABLES["Kernels"], "COTSWOLD_NOWHERE", "Nothing.")
        with pytest.raises(SiteError, match="remove COTSWOLD_NOWHERE"):
            environment.check()


class TestEvents:
    def test_kinds_and_fields_are_those_that_the_source_writes(self) -> None:
        assert "| `checkpoint` | A checkpoint is complete. | `step`, `path` |" in events.event_page()

    def test_one_without_a_meaning_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(events.EVENTS, "validation")
        with pytest.raises(SiteError, match="state the meaning of events validation"):
            events.event_page()

    def test_one_that_nothing_writes_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(events.EVENTS, "nowhere", "Nothing.")
        with pytest.raises(SiteError, match="remove events nowhere"):
            events.event_page()


class TestJsonOutput:
    def row(self, schema: str, text: str) -> str:
        (line,) = (each for each in text.splitlines() if f"| `cotswold.{schema}/1` |" in each)
        return line

    def test_every_command_with_json_is_on_the_page(self, pages: Mapping[str, str]) -> None:
        text = pages["reference/json-output.md"]
        assert [each for each in COMMANDS_WITH_JSON if f"| [`cotswold {each}`](" not in text] == []

    @pytest.mark.parametrize(
        ("words", "schema"),
        [("recipe list", "recipe.list"), ("simulate --list", "simulate.list"), ("doctor", "doctor")],
    )
    def test_schema_and_fields_are_those_that_the_command_prints(
        self, words: str, schema: str, pages: Mapping[str, str]
    ) -> None:
        told = json.loads(cotswold(*words.split(), "--json").out)
        row = self.row(schema, pages["reference/json-output.md"])
        assert told.pop("schema") == f"cotswold.{schema}/1"
        assert row.split(" | ")[-1] == ", ".join(f"`{name}`" for name in told) + " |"

    def test_names_of_schemas_are_found_in_functions_and_conditions(self) -> None:
        found = json_output.schemas()
        assert {"bench.kernels", "bench.server", "bench.server-trace", "bench.server-copies"} <= found.keys()
        assert found["simulate"] == ["recipe", "updates"]
        assert found["simulate.evaluations"] == ["recipe", "samples", "outputs", "evaluations"]
        assert found["verify"] == ["path", "kind", "is_valid", "findings"]

    def test_the_example_of_an_error_is_what_the_command_prints(self, pages: Mapping[str, str]) -> None:
        text = pages["reference/json-output.md"]
        (words, example) = re.findall(r"`cotswold (info [^`]*)` prints:\n\n```json\n(.*)\n```", text)[0]
        said = cotswold(*words.split())
        assert said.out == f"{example}\n" and said.status == json.loads(example)["error"]["exit_code"]
        for name in json.loads(example)["error"]:
            assert f"`{name}` is the " in text

    def test_a_command_without_its_content_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(json_output.CONTENTS, "recipe list")
        with pytest.raises(SiteError, match="state the content of commands with --json recipe list in"):
            json_output.json_page()

    def test_a_schema_without_its_content_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(json_output.CONTENTS["info"], "info.store")
        with pytest.raises(SiteError, match=r"state the content of schemas info\.store in"):
            json_output.json_page()

    def test_a_schema_that_nothing_prints_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(json_output.CONTENTS["info"], "nowhere", "Nothing.")
        with pytest.raises(SiteError, match="remove schemas nowhere"):
            json_output.json_page()

    def test_a_name_of_a_schema_that_is_no_literal_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage.write(tmp_path / "cli" / "mine.py", "def show(name):\n    print_json(name, {})\n")
        monkeypatch.setattr(json_output, "SOURCE", tmp_path)
        with pytest.raises(SiteError, match=r"mine\.py: write the name of the schema in show as a literal"):
            json_output.schemas()


class TestDocstrings:
    def test_examples_become_code(self) -> None:
        assert convert_docstring("Text.\n>>> f()\n1\n\nEnd.") == "Text.\n\n```pycon\n>>> f()\n1\n```\n\nEnd."

    def test_brackets_and_tags_are_text(self) -> None:
        assert convert_docstring("x[a][b], <name>, `y[a][b]`") == "x[a]\\[b], &lt;name>, `y[a][b]`"


def fields(section: type[Section]) -> list[str]:
    """Return the names of all fields of a schema that are no tables."""
    found: list[str] = []
    for name, field in section.model_fields.items():
        inside = sections_in(field.annotation)
        found += [] if inside else [name]
        found += [each for table in inside for each in fields(table)]
    return found

"""The documentation: its code runs, its links work, and its reference matches the program."""

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_study import write_study
from toys import ToyLearner, ToyTask, toy_algorithm

from qdhuac import cli, config
from qdhuac.algorithms import specs
from qdhuac.studies.results import collect

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"(?:<!-- not run: (?P<why>.+?) -->\n\n?)?^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load(ROOT / "docs" / "hooks.py")


def blocks(page):
    return [match["code"] for match in BLOCK.finditer(page.read_text()) if not match["why"]]


def anchors(page):
    """The anchors that a page's headings get."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_command_and_option_is_in_the_reference():
    page = hooks.commands_page()
    names = ["train", "resume", "evaluate", "report", "export", "render", "view", "adapt", "study", "bench", "doctor"]
    for name in [*names, "task new", "task check"]:
        assert f"\n## {name}\n" in page
    for flag in re.findall(r'"(--[a-z-]+)"', Path(cli.__file__).read_text()):
        assert flag in page, flag


@pytest.mark.parametrize("algorithm", specs.ALGORITHMS)
def test_every_key_is_in_the_reference_with_its_meaning(algorithm):
    page = hooks.configuration_page()
    shared, own = page.partition("\n## qdhuac\n")[0], page.partition(f"\n## {algorithm}\n")[2].partition("\n## ")[0]
    made = specs.make(algorithm)
    for name, field in config.keys(made).items():
        if "." in name:
            home = shared if name.partition(".")[0] in (*config.SHARED, "run") else own
            (line,) = (line for line in home.splitlines() if line.startswith(f"| `{name}` |"))
            assert hooks._cell(field.metadata["doc"]) in line


def test_the_reference_shows_bounds_and_what_presets_set():
    own = hooks.configuration_page().partition("\n## qdhuac\n")[2].partition("\n## ")[0]
    (line,) = (line for line in own.splitlines() if "`emitter.isoline_share`" in line)
    assert "at least 0, at most 1" in line
    (line,) = (line for line in own.splitlines() if "`critic.width`" in line)
    assert line.split("|")[2:5] == [" 128 ", " 512 ", " 16 "]  # laptop, paper, smoke


@pytest.fixture
def benchmark(monkeypatch):
    """Loads a script of benchmarks/."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return lambda name: load(ROOT / "benchmarks" / f"{name}.py")


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_the_tables_of_results_are_those_of_the_stored_studies(benchmark, page):
    text = (ROOT / page).read_text()
    assert text.count("<!-- table: ") == text.count("<!-- /table -->") > 0
    assert benchmark("results").filled(text) == text  # if not: python benchmarks/results.py page PAGE


def test_a_claim_holds_if_a_rank_test_over_seeds_says_so(benchmark):
    verdict = benchmark("claims").verdict
    low, middle, high = (np.array([1.0, 2.0, 3.0]) + shift for shift in (0.0, 1.5, 5.0))
    assert verdict(high, low) == "yes"
    assert verdict(low, high) == "no"
    assert verdict(middle, low) == verdict(low, middle) == "unclear"
    assert verdict(low, low) == "unclear"
    assert verdict(high[:1], low) == "1 seed of 3"
    # Ten seeds each: the tables of the rank test say that 73 of 100 pairs in order are enough, and 72 are not.
    ten, ours = np.arange(10.0), [100.0] * 7 + [-1.0] * 2  # 70 pairs in order
    assert verdict(np.array([*ours, 2.5]), ten) == "yes"
    assert verdict(np.array([*ours, 1.5]), ten) == "unclear"
    assert verdict(ten, np.array([*ours, 2.5])) == "no"


def test_a_claim_within_runs_is_judged_by_a_sign_test(benchmark):
    signs = benchmark("claims").signs
    assert signs(np.array([1.0, 2.0, 3.0, 4.0])) == "unclear"  # four coins show the same side in one case of eight
    assert signs(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == "yes"
    assert signs(-np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == "no"
    assert signs(np.zeros(5)) == "not seen"


def test_claims_are_judged_by_the_numbers_of_the_studies(benchmark, tmp_path):
    claims = benchmark("claims")
    assert claims.table({})[1] == []
    studies = {name: collect(write_study(tmp_path, name, "laptop", 3, archive=False)) for name in claims.CLAIMS}
    _, rows = claims.table(studies)
    said = {row[0]: row[1:] for row in rows}
    assert len(said) == len(rows) > 25
    assert all(here != "no run yet" and holds for _, here, holds in said.values())
    found = studies["components"]  # its settings differ by more than their seeds do
    scalar, full = (found.final("halfcheetah", name, "max_fitness") for name in ("scalar critic", "QDHUAC"))
    _, here, holds = said["HalfCheetah: a scalar critic is less fit than C51 early on"]
    assert here.endswith(f" ({scalar.mean() / full.mean():.0%})")
    assert holds == ("yes" if scalar.max() < full.min() else "no")


def test_a_claim_of_being_higher_than_several_holds_against_each_of_them(benchmark, tmp_path):
    claims = benchmark("claims")
    found = collect(write_study(tmp_path, "benchmark", "laptop", 3, archive=False))
    ours, *others = "QDHUAC", "PGA-ME", "QD-PG"

    def judged(**seeds):
        for name, values in seeds.items():
            rows = {i: [{"env_steps": 1, "max_fitness": value}] for i, value in enumerate(values)}
            found.curves["hopper", {"ours": ours, "steady": others[0], "wild": others[1]}[name]] = rows
        return claims.table({"benchmark": found})[1][0][2:]  # Hopper: QDHUAC against PGA-ME and QD-PG

    assert judged(ours=(7, 8, 9), steady=(5, 5, 6), wild=(1, 1, 6)) == ["8 against 5.333 (PGA-ME)", "yes"]
    assert judged(wild=(1, 1, 8))[1] == "unclear"  # not the best on average, but its best run beats one of ours
    assert judged(steady=(10, 10, 10))[1] == "no"
    assert judged(wild=(1, 8))[1] == "2 seeds of 3"
    assert judged(wild=()) == ["no run yet", ""]


def test_the_code_beside_the_mathematics_is_there():
    text = (ROOT / "docs" / "algorithm.md").read_text()
    page = hooks.with_code(text)
    assert page.count('??? example "') == text.count("<!-- code: ") > 5
    assert "    def dominated_novelty(" in page
    with pytest.raises(ValueError, match=r"archives/dns\.py has no nothing"):
        hooks.source("archives/dns.py", "nothing")


def test_links_of_the_repository_become_links_of_the_site():
    text = "[a](docs/use.md#export) [b](CHANGELOG.md) [c](LICENSE) [d](https://x.org) [e](#here)"
    page, needed = hooks.with_links(text, "README.md")
    assert page == "[a](use.md#export) [b](changelog.md) [c](files/LICENSE.md) [d](https://x.org) [e](#here)"
    assert needed == {"LICENSE"}
    page, needed = hooks.with_links("[a](algorithm.md) [b](../examples/x.py) [c](../README.md)", "docs/use.md")
    assert page == "[a](algorithm.md) [b](files/examples/x.py.md) [c](index.md)"


# The examples run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small run on a robot, exported, and an observation of it."""
    where = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qdhuac.report.run_page._film", lambda folder: "")
        run = str(where / "runs" / "my-walker")
        options = ["--preset", "smoke", "--algorithm", "dns", "--task", "walker2d", "--generations", "2"]
        assert cli.main(["train", *options, "--run-dir", run]) == 0
        assert cli.main(["export", run, "--output", str(where / "robot")]) == 0
    (where / "runs" / "my-ant").symlink_to(run)  # README's
    return where


def execute(page, names, monkeypatch, folder, edit=lambda code: code):
    """Run the blocks of a page one after the other, as a reader would, in a folder."""
    monkeypatch.chdir(folder)
    found = blocks(ROOT / page)
    assert found
    for code in found:
        exec(compile(edit(code), page, "exec"), names)
    return names


def test_the_examples_of_the_readme(folder, monkeypatch):
    names = vars(load(ROOT / "examples" / "planar_arm.py")) | {"observation": np.zeros(17, np.float32)}
    execute("README.md", names, monkeypatch, folder, lambda code: code.replace("range(500)", "range(2)"))
    assert names["action"].shape == (6,)
    assert int(names["told"].metrics.sums["isoline/tried"]) == 100


def test_the_examples_of_use(folder, monkeypatch):
    pytest.importorskip("pandas")
    pytest.importorskip("ribs")
    monkeypatch.syspath_prepend(folder)
    names = execute("docs/use.md", {"observation": np.zeros(17, np.float32)}, monkeypatch, folder)
    assert names["action"].shape == (6,)
    assert len(names["frame"]) == len(names["run"])
    assert float(np.max(names["individuals"].fitness)) == pytest.approx(names["run"].best.fitness)


class Walk(NamedTuple):
    obs: jax.Array
    reward: jax.Array
    done: jax.Array


class Table:
    """A simulator in JAX with 8 observations and 2 actions."""

    def reset(self, key):
        return Walk(jax.random.uniform(key, (8,)), jnp.float32(0), jnp.float32(0))

    def step(self, state, action):
        return state._replace(obs=state.obs.at[:2].add(action), reward=action[0])


def test_the_examples_of_own_task(folder, monkeypatch):
    trained = []
    monkeypatch.setattr("qdhuac.train", lambda task, path: trained.append(task))
    algorithm = toy_algorithm(ToyLearner)
    names = {
        "my_environment": Table(),
        "my_features": lambda state: (state.obs[:1] > 0).astype(jnp.float32),
        "algorithm": algorithm,
        "simulate": lambda genotypes: ToyTask().evaluate(genotypes, jax.random.key(3)),
        "state": algorithm.init(jax.random.key(0)),
        "updates": 3,
    }
    names = execute("docs/own-task.md", names, monkeypatch, folder)
    (task,) = trained
    evaluation = task.evaluate(jax.vmap(task.policy.init)(jax.random.split(jax.random.key(1), 2)), jax.random.key(2))
    assert evaluation.descriptor.shape == (2, 1)
    assert evaluation.steps.tolist() == [200, 200]
    assert int(names["told"].metrics.sums["random/survived"]) == 6
    assert np.isfinite(names["metrics"].means["critic_loss"])

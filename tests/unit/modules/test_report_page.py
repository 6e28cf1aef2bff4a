"""The page of a report: complete, safe, and small."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections import Counter
from hashlib import sha256
from html.parser import HTMLParser
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count

from modules.evaluation import BiasReport
from modules.report import Moment, RankAccount, Sweep
from modules.report.data import RowSelection, SweepView
from modules.report.markup import highlight, show
from modules.report.page import analyse, concluded, page, with_bias_of
from modules.report.panels import LinearScale, LogScale, NamedScale, OrNotSet, focus, scale_for

SECTIONS = ["history", "cost", "parallel", "importance", "trials", "ranks", "again"]
ACCOUNTS = [
    RankAccount(1, "node17", ["tuple server"], 1.0, 98.0, 1.0),
    RankAccount(2, "node17", ["master.0", "trainer.0"], 90.0, 10.0, 0.0),
]


class Parsed(HTMLParser):
    """Every start tag with its attributes, and the text; fails where tags are not closed."""

    VOID = frozenset({"meta", "input"})

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(document)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((self._open[-1], data))

    def ids(self) -> list[str]:
        return [about["id"] or "" for _, about in self.tags if "id" in about]

    def inside(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag]


def rows(trials: int) -> list[dict[str, Any]]:
    return [
        {
            "trial": trial,
            "learning_rate": 10.0 ** -(trial % 5),
            "hidden": [[32], [64, 32]][trial % 2],
            "momentum": 0.5,
            "accuracy": 0.5 + math.sin(trial) / 3,
            "loss": 1.5 - math.sin(trial),
            "training_time_s": 1.0 + trial % 7,
            "trainer": trial % 3,
            "seed": trial * 17,
        }
        for trial in range(trials)
    ]


def sweep(**changes: Any) -> Sweep:
    about: dict[str, Any] = {
        "name": "study",
        "objective": "accuracy",
        "maximise": True,
        "parameters": ("learning_rate", "hidden", "momentum"),
        "metrics": ("accuracy", "loss", "training_time_s"),
        "workflow": '[workflow]\nname = "study"  # a comment\n',
        "command": "diel run workflow.toml",
        "facts": {"NumPy": "2"},
        "about": "module master",
    }
    return Sweep(**(about | changes))


def document(
    of: list[dict[str, Any]], about: Sweep | None = None, moment: Moment | None = None
) -> str:
    selection = RowSelection(about or sweep())
    selection.add(of)
    view = SweepView.of(selection, moment or Moment(accounts=ACCOUNTS, elapsed_s=12.0))
    return page(view, analyse(view))


def data_of(parsed: Parsed) -> Any:
    (text,) = [one for one in parsed.inside("script") if one.startswith("{")]
    return json.loads(text)


def test_every_section_is_there() -> None:
    parsed = Parsed(document(rows(40)))
    assert [one for one in parsed.ids() if one in SECTIONS] == SECTIONS
    headings = parsed.inside("h2")
    assert headings[:3] == ["History", "Accuracy against training time", "Parameters"]
    lines = [about for tag, about in parsed.tags if tag == "polyline" and "data-row" in about]
    assert len(lines) == 40
    cells = [about for tag, about in parsed.tags if tag == "tr" and "data-row" in about]
    assert len(cells) == 40
    best = max(rows(40), key=lambda row: row["accuracy"])
    assert show(best["accuracy"]) in parsed.inside("b")
    assert "For all trials: momentum 0.5." in parsed.inside("p")
    assert "rank 2 on node17: master.0, trainer.0" in parsed.inside("span")
    assert len(data_of(parsed)["rows"]) == 40


@pytest.mark.parametrize("trials", [0, 1, 2, 9])
def test_a_report_of_few_trials_leaves_out_what_is_empty(trials: int) -> None:
    parsed = Parsed(document(rows(trials), moment=Moment(state="running", reload_s=5.0)))
    without = {0: set(SECTIONS) - {"again"}, 1: {"parallel", "importance"}}
    gone = without.get(trials, {"importance"})
    assert [one for one in parsed.ids() if one in SECTIONS] == [
        one for one in SECTIONS if one not in gone
    ]
    told = [text for text in parsed.inside("p") if text == "No trial has a result yet."]
    assert len(told) == (trials == 0)
    assert "reload" in parsed.ids()


def test_only_its_own_script_may_run_and_nothing_is_loaded() -> None:
    parsed = Parsed(document(rows(12)))
    (policy,) = [
        about["content"] or ""
        for tag, about in parsed.tags
        if tag == "meta" and about.get("http-equiv") == "Content-Security-Policy"
    ]
    script = next(one for one in parsed.inside("script") if not one.startswith("{"))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    for tag, about in parsed.tags:
        assert not {"src", "href", "srcset", "data", "action"} & set(about), (tag, about)
        assert not any(name.startswith("on") for name in about), (tag, about)
    style = "".join(parsed.inside("style"))
    assert "url(" not in style
    assert "@import" not in style


EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&lt;\'"<!--ranks-->'


def test_text_from_outside_stays_text() -> None:
    of = [
        {**row, "hidden": EVIL + str(row["trial"] % 3), EVIL: 1.0, "trainer": EVIL}
        for row in rows(30)
    ]
    of[3] |= {"state": EVIL, "accuracy": math.nan}
    about = sweep(
        name=EVIL,
        parameters=("learning_rate", "hidden", EVIL),
        metrics=("accuracy", EVIL),
        workflow=EVIL,
        command=EVIL,
        facts={EVIL: EVIL},
        about=EVIL,
    )
    told = BiasReport(EVIL, True, 0.9, 0.8, method=EVIL, warning=EVIL)
    accounts = [RankAccount(1, EVIL, [EVIL], 1.0, 1.0, 1.0)]
    moment = Moment(EVIL, 1.0, EVIL, accounts, told)
    text = document(of, about, moment)
    parsed = Parsed(text)
    assert [tag for tag, _ in parsed.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in parsed.tags}
    assert not any(name.startswith("on") for _, about in parsed.tags for name in about)
    assert text.count("<!--ranks-->") == 1
    assert parsed.inside("h1") == [EVIL]
    assert EVIL in "".join(parsed.inside("pre") + parsed.inside("code") + parsed.inside("span"))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(0, 99), max_size=3),
    st.sampled_from([10**400, -(10**400), 1e308, -1e308, 5e-324, "\0", "\ud800", b"x", {"k": 1}]),
)


@settings(max_examples=case_count(120))
@given(
    st.lists(
        st.fixed_dictionaries(
            {"score": st.one_of(st.floats(), st.floats(0, 1), VALUES)},
            optional={"trial": VALUES, "a": VALUES, "b": VALUES, "time_s": VALUES,
                      "state": st.sampled_from(["", "finished", "no"]), "trainer": VALUES},
        ),
        max_size=40,
    ),
    st.booleans(),
)  # fmt: skip
def test_whatever_the_rows_hold_there_is_a_report(of: list[dict[str, Any]], maximise: bool) -> None:
    hashable = [
        {
            key: str(value) if key == "trainer" and isinstance(value, (list, dict)) else value
            for key, value in row.items()
        }
        for row in of
    ]
    about = Sweep("s", "score", maximise, ("a", "b"), cost="time_s")
    text = document(hashable, about)
    parsed = Parsed(text)
    there = [one for one in parsed.ids() if one in SECTIONS]
    assert there == [one for one in SECTIONS if one in there]
    assert "again" in there
    data_of(parsed)
    drawn = [about.get("d") or about.get("points") or "" for _, about in parsed.tags]
    assert not any("nan" in one or "inf" in one for one in drawn)


@pytest.mark.parametrize(
    "odd",
    [
        {"trial": 10**400},
        {"learning_rate": "²"},
        {"accuracy": -1.7e308},
        {"accuracy": 5e-324},
        {"training_time_s": -1.0},
        {"hidden": "\ud800"},
    ],
)
def test_odd_values_that_once_stopped_a_report(odd: dict[str, Any]) -> None:
    of = rows(12)
    of[5] |= odd
    assert len(Parsed(document(of)).ids()) > 5


def test_a_million_trials_would_make_no_larger_file() -> None:
    sizes = []
    for trials in (4_000, 16_000):
        text = document(rows(trials))
        sizes.append(len(text))
        assert f"Of {trials:,} trials with a result" in text
        assert re.search(r"[\d,]+ of them are drawn as lines", text)
    assert sizes[1] < 1.1 * sizes[0]
    assert sizes[1] < 600_000


def test_a_small_report_is_small() -> None:
    assert len(document(rows(36))) < 100_000


def test_the_end_of_a_run_is_added_to_a_report() -> None:
    live = document(rows(20), moment=Moment("running", 3.0, reload_s=5.0))
    assert "trainer 0" in Parsed(live).inside("span")
    ended = concluded(live, "stopped", ACCOUNTS)
    parsed = Parsed(ended)
    assert "stopped" in parsed.inside("span")
    assert "reload" not in parsed.ids()
    assert "rank 1 on node17: tuple server" in parsed.inside("span")
    assert concluded(ended, "stopped", ACCOUNTS) == ended
    assert "trainer 0" in Parsed(concluded(live, "failed", [])).inside("span")
    with pytest.raises(ValueError, match="no report"):
        concluded("<p>something else</p>", "finished", ACCOUNTS)


def test_the_selection_bias() -> None:
    told = BiasReport("accuracy", True, 0.95, 0.9, 0.02, 40, "5 folds", "test rows decided")
    text = document(rows(40), moment=Moment(bias=told))
    parsed = Parsed(text)
    assert "bias" in parsed.ids()
    assert {"0.95", "0.9 ± 0.02", "0.05"} <= set(parsed.inside("b"))
    assert "best of 40" in parsed.inside("span")
    assert text.count("test rows decided") == 1
    again = with_bias_of(document(rows(41)), text)
    assert "bias" in Parsed(again).ids()
    assert BiasReport("loss", False, 0.1, 0.3).bias == pytest.approx(0.2)


def test_the_best_score_stands_beside_its_caution() -> None:
    told = BiasReport("accuracy", True, 0.97, trials=200, warning="they chose it")
    text = document(rows(40), moment=Moment(bias=told))
    header = text.partition("</header>")[0]
    assert "accuracy 0.97: they chose it." in header
    assert 'href="#bias"' in header
    honest = BiasReport("accuracy", True, 0.95, 0.83, trials=12, method="nested")
    header = document(rows(40), moment=Moment(bias=honest)).partition("</header>")[0]
    assert 'class="warning"' not in header
    assert "honest accuracy" in header
    # A report that is written again has only the rows: what was said stays.
    again = with_bias_of(document(rows(41)), text)
    assert "they chose it." in again.partition("</header>")[0]
    for name in ("honest", "caution"):  # one of before there was a caution has neither
        text = re.sub(f"<!--{name}-->.*?<!--/{name}-->", "", text)
    again = with_bias_of(document(rows(41)), text)
    assert "bias" in Parsed(again).ids()
    assert "they chose it." not in again.partition("</header>")[0]


def test_learning_curves_of_the_best_and_the_stopped_trials() -> None:
    of = rows(40)
    for row in of:
        row["state"] = "stopped" if row["trial"] % 4 == 0 else "finished"
        last = 3 if row["trial"] % 4 == 0 else 20
        row["learning curve"] = [
            (step, row["accuracy"] * (1 - 1 / (step + 1))) for step in range(1, last)
        ]
        if row["trial"] == 8:
            row["learning curve"] = [(1, math.nan), (2, 0.5), (3, math.inf)]  # nothing to draw
    parsed = Parsed(document(of))
    assert "curves" in parsed.ids()
    lines = [about for tag, about in parsed.tags if tag == "polyline" and "data-row" in about]
    styles = Counter(about["class"] for about in lines if about["class"] in STYLES)
    assert styles == {"line best": 1, "line cloud": 9, "line stopped": 9}
    (note,) = [text for text in parsed.inside("p") if "have reported" in text]
    assert note == (
        "What the 10 best trials have reported on their way, and, dashed, 9 of 10 that were "
        "stopped early, up to there."
    )
    assert "learning curve" not in data_of(parsed)["keys"]
    assert "curves" not in Parsed(document(rows(40))).ids()


STYLES = ("line best", "line cloud", "line stopped")


def test_a_forest_that_knows_nothing_is_not_shown_as_one_that_does() -> None:
    of = [{**row, "accuracy": Random(row["trial"]).random()} for row in rows(60)]
    warnings = [text for text in Parsed(document(of)).inside("p") if "too little to trust" in text]
    assert len(warnings) == 1


def test_many_ranks_become_cells() -> None:
    many = [RankAccount(rank, "n", [f"trainer.{rank}"], 3.0, 1.0, 0.0) for rank in range(1, 200)]
    parsed = Parsed(document(rows(20), moment=Moment(accounts=many)))
    cells = [about for tag, about in parsed.tags if tag == "i" and "title" in about]
    assert len(cells) == 199
    assert "199 ranks: trainer" in parsed.inside("span")


def test_parameters_that_are_empty_are_not_set() -> None:
    of = [{**row, "dropout": "" if row["trial"] % 2 else 0.1 * row["trial"]} for row in rows(40)]
    text = document(of, sweep(parameters=("learning_rate", "dropout")))
    assert "not set</text>" in text


# -- scales ---------------------------------------------------------------------------------------


def test_which_scale_a_parameter_gets() -> None:
    assert isinstance(scale_for([0.1, 0.01, 0.001]), NamedScale)
    assert isinstance(scale_for([10.0 ** -(one / 10) for one in range(50)]), LogScale)
    assert isinstance(scale_for([float(one) for one in range(1, 51)]), LinearScale)
    assert isinstance(scale_for([None, *(float(one) for one in range(50))]), OrNotSet)
    named = scale_for([[64, 32], [32], [128], [64], None])
    assert isinstance(named, NamedScale)
    assert named.labels == ("not set", "32", "64", "64x32", "128")
    assert scale_for(["b", "a"]).ticks(5) == [(0.0, "a"), (1.0, "b")]


def test_a_result_that_is_far_worse_does_not_stretch_the_axis() -> None:
    up = focus([0.1, 0.9, 0.92, 0.95, 0.97], maximise=True)
    assert 0.7 < up.low < 0.9
    assert up.place(0.1) == 0.0
    down = focus([1e9, 0.3, 0.25, 0.2, 0.1], maximise=False)
    assert down.high < 1
    assert focus([0.5, 0.5], maximise=True).place(0.5) == 0.5


@given(
    st.floats(-1e12, 1e12),
    st.floats(1e-9, 1e12),
    st.integers(1, 10),
)
def test_ticks_lie_on_the_axis(low: float, width: float, count: int) -> None:
    if low + width == low:
        return
    ticks = LinearScale(low, low + width).ticks(count)
    assert len(ticks) <= 2.5 * count + 2
    assert all(-0.001 <= where <= 1.001 for where, _ in ticks)


@given(st.floats(1e-12, 1e12), st.floats(1.5, 1e9), st.integers(1, 10))
def test_logarithmic_ticks_lie_on_the_axis(low: float, ratio: float, count: int) -> None:
    ticks = LogScale(low, low * ratio).ticks(count)
    assert all(0 <= where <= 1 for where, _ in ticks)
    if ratio >= 10:
        assert ticks


# -- the workflow file ----------------------------------------------------------------------------


def test_parts_of_a_workflow_file_are_marked() -> None:
    marked = highlight('[[module]]\nname = "a # b"  # why\nn = 3\n')
    assert '<span class="toml-table">[[module]]</span>' in marked
    assert '<span class="toml-text">&quot;a # b&quot;</span>' in marked
    assert '<span class="toml-comment"># why</span>' in marked
    assert '<span class="toml-key">n</span> = 3' in marked


@given(st.text(alphabet="ab[]=\"'#\n <&", max_size=60))
def test_marking_loses_nothing(toml: str) -> None:
    assert "".join(text for _, text in Parsed(f"<pre>{highlight(toml)}</pre>").texts) == toml


def test_importances_do_not_depend_on_the_order_of_completion() -> None:
    shuffled = Random(1).sample(rows(40), 40)
    first, second = (
        re.findall(r'<section id="importance".*?</section>', document(of))
        for of in (rows(40), shuffled)
    )
    assert first == second
    assert len(first) == 1

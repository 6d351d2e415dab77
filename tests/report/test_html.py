"""A plan as HTML: numbers, escaped names, a picture of the mesh."""

import json
import re
from html import escape
from html.parser import HTMLParser
from typing import Any

import pytest

from lts.hardware import Cluster
from lts.report.html import plan_html
from lts.report.picture import axis_colour, mesh_svg

VOID = {"br", "rect"}


class Tags(HTMLParser):
    """Collects tags and checks that all are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_cards_state_the_metrics(served: dict[str, Any]) -> None:
    page = plan_html(served)
    for value in ("100.5", "250.0 ms", "12.5 ms", "96 requests", "60.0 GB", "25.0%"):
        assert f"<b>{value}</b>" in page
    # TTFT takes a quarter of its limit
    assert '<i style="width:25.0%"></i>' in page
    assert "of 76.4 GB: weights 40.0 GB, KV cache 15.0 GB, activations 5.0 GB" in page


def test_function_shows_its_step_time(plain: dict[str, Any]) -> None:
    page = plan_html(plain)
    assert "<b>60.0 us</b>" in page
    assert "TTFT" not in page and "Tokens" not in page


@pytest.mark.parametrize("plan", ["served", "plain", "pooled"])
def test_tags_are_closed_and_nothing_comes_from_elsewhere(
    plan: str, request: pytest.FixtureRequest
) -> None:
    page = plan_html(request.getfixturevalue(plan))
    tags = Tags(page)
    assert "svg" in tags.seen
    assert not {"script", "link", "img", "iframe", "object"} & set(tags.seen)
    assert "http" not in page and "url(" not in page and "@import" not in page


def test_names_are_escaped_everywhere(served: dict[str, Any]) -> None:
    bad = "<script>alert('&\"')</script>"
    # axis, model, group, operator, dim, argument, link
    for name in (
        "x",
        "tiny",
        "attention/query",
        "embed",
        "hidden",
        "tokens",
        "NVLink4",
    ):
        text = json.dumps(served).replace(f'"{name}"', json.dumps(bad))
        page = plan_html(json.loads(text))
        assert "<script" not in page
        assert escape(bad) in page
        Tags(page)


def test_chips_name_the_factor_and_colour_its_axes(served: dict[str, Any]) -> None:
    first, second = (
        f'<span class="lts-axis" style="background:{axis_colour(i)}">{name}</span>'
        for i, name in enumerate("xy")
    )
    page = plan_html(served)
    assert f'<span class="lts-chip">hidden{first}</span>' in page
    assert f'<span class="lts-chip">batch{second}</span>' in page
    assert f'<span class="lts-chip">heads{first}{second}</span>' in page


def test_bar_segments_of_a_phase_fill_it(served: dict[str, Any]) -> None:
    page = plan_html(served)
    bars = page.split('class="lts-bar"')[1:]
    for bar in bars:
        shares = re.findall(r"flex:([0-9.]+) 0 0", bar.split("</div>")[0])
        assert sum(map(float, shares)) == pytest.approx(1.0, abs=1e-4)
    assert len(bars) == 2
    assert 'title="attention/query: 100.0 ms, 50.0%">attention/query<' in bars[0]
    # 5% of the width has no room for a name
    assert 'title="attention/query:: 10.0 ms, 5.0%"><' in bars[0]


def test_picture_places_every_gpu_on_stage_and_axes(served: dict[str, Any]) -> None:
    picture = mesh_svg(served)
    titles = re.findall(r"<title>(.*?)</title>", picture)
    assert len(titles) == 16
    assert titles[0] == "GPU 0: stage=0, x=0, y=0"
    # 13 = 1 * 8 + 1 * 4 + 1
    assert titles[13] == "GPU 13: stage=1, x=1, y=1"
    assert [f"node {i}" in picture for i in range(5)] == [True] * 4 + [False]


def test_pools_have_a_picture_each_of_one_instance(pooled: dict[str, Any]) -> None:
    page = plan_html(pooled)
    assert Tags(page).seen.count("svg") == 2
    assert "prefill: 3 instances of 2 GPUs" in page
    assert "decode: 1 instance of 8 GPUs" in page
    assert "2 GPUs idle" in page
    assert "limit 1000 ms; KV transfer 12.5 ms" in page
    titles = re.findall(r"<title>(.*?)</title>", mesh_svg(pooled, "prefill"))
    assert titles == ["GPU 0: y=0", "GPU 1: y=1"]
    titles = re.findall(r"<title>(.*?)</title>", mesh_svg(pooled, "decode"))
    assert len(titles) == 8
    # on nodes of 4 GPUs: 6 is on the second, 1 * 4 + 1 * 2 + 0
    assert titles[6] == "GPU 6: stage=1, x=1, y=0"
    assert "node 1" in mesh_svg(pooled, "decode")


def test_chips_of_pools_take_colours_of_their_own_axes(pooled: dict[str, Any]) -> None:
    """The prefill mesh has y only, so it is the first there and second in decode."""
    page = plan_html(pooled)
    first, second = (
        f'<span class="lts-axis" style="background:{axis_colour(i)}">y</span>'
        for i in range(2)
    )
    assert f'<span class="lts-chip">heads{first}</span>' in page
    assert f'<span class="lts-chip">batch{second}</span>' in page


def test_picture_of_a_large_cluster_is_cut_off_and_says_so(
    served: dict[str, Any],
) -> None:
    served["cluster"] = Cluster.preset("h100", 128, 8).to_dict()
    served["phases"]["decode"]["assignment"]["axes"][0]["size"] = 128
    picture = mesh_svg(served)
    assert picture.count("<title>") == 32
    assert "and 124 more nodes, laid out alike" in picture
    Tags(picture)


def test_colours_come_from_the_page_so_that_any_theme_reads(
    served: dict[str, Any],
) -> None:
    page = plan_html(served)
    style = page.split("<style>")[1].split("</style>")[0]
    assert ".lts-plan{color:inherit;" in style
    # every rule is confined to the plan
    rules = [line for line in style.splitlines() if "{" in line]
    assert all(rule.startswith(".lts-plan") for rule in rules)
    assert set(re.findall(r'<text[^>]* fill="([^"]*)"', page)) == {"currentColor"}


def test_shapes_are_shown_with_the_worst(plain: dict[str, Any]) -> None:
    shapes = [
        {
            "name": f"step{number}",
            "arguments": {"x": [rows, 8]},
            "step_time_s": time_s,
            "alone_s": 40e-6,
        }
        for number, rows, time_s in (("", 4, 40e-6), ("#2", 64, 50e-6))
    ]
    metrics = {**plain["metrics"], "shapes": shapes, "worst_shape": "step#2"}
    html = plan_html({**plain, "metrics": metrics})
    assert "mean of 2 shapes" in html
    assert "<code>x [4, 8]</code></div><div>40.0 us</div><div>1.00x</div>" in html
    assert "<div>50.0 us</div><div>1.25x <b>worst</b></div>" in html
    assert "one plan for all" not in plan_html(plain)

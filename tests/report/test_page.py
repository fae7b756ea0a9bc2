"""The page says what the results say, whatever the names, and fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from interlace.job.results import KeptResult, Results
from interlace.report import write_report

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags close in order, and gathers texts, attributes and ``data`` values."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self) -> list[float]:
        return [float(v) for tag, name, v in self.attributes if (tag, name) == ("data", "value")]


def written(results: Results, folder: Path) -> str:
    return write_report(results, folder / "report.html").read_text(encoding="utf-8")


def test_every_party_and_model_is_named(results: Results, tmp_path: Path) -> None:
    text = Page(written(results, tmp_path)).text
    for name in [p.name for p in results.parties] + [m.title for m in results.models]:
        assert name in text
    assert results.command in text
    assert " ".join(results.job.split()) in text
    assert all(p.ledger_head in text for p in results.parties)
    assert all(m.skipped in text for m in results.models if m.skipped)


def test_how_columns_were_read_and_what_encrypted_is_said(
    insurance: Results, tmp_path: Path
) -> None:
    insurance.parties[0].columns_read = {
        "numbers": [f"n{i}" for i in range(8)],
        "dropped": ["empty"],
    }
    insurance.models[0].encryption = {"outcomes": "rlwe-fast", "residuals": "rlwe-strict"}
    text = Page(written(insurance, tmp_path)).text
    read = "Columns were read as numbers: n0, n1, n2, n3, n4, n5 and 2 more; dropped: empty"
    assert read in text
    assert "encrypted outcomes with rlwe-fast; residuals with rlwe-strict." in text


def test_numbers_are_those_of_the_results(results: Results, tmp_path: Path) -> None:
    data = np.array(Page(written(results, tmp_path)).data)
    wanted = [float(results.shared_by_all), float(results.tested_on), results.seconds]
    wanted += [float(n) for p in results.parties for n in (p.people, p.shared, p.alone)]
    wanted += [float(f.bytes_after) for f in results.flows if f.kind == "gradient"]
    for m in results.models:
        for metric in m.fits[0].metrics if m.fits else ():
            wanted.append(float(np.mean([f.metrics[metric] for f in m.fits])))
    for value in wanted:
        assert np.isclose(data, value, rtol=1e-12, atol=0).any(), value


def test_probabilities_worse_than_a_constant_guess_are_told(
    insurance: Results, tmp_path: Path
) -> None:
    assert insurance.outcomes
    assert "the same probability" not in Page(written(insurance, tmp_path)).text
    for fit in insurance.models[0].fits:  # −ln of the 6 % and 94 % it should give
        fit.metrics["log_loss"] = 0.228
    text = Page(written(insurance, tmp_path)).text
    assert "the 6 % of the people held out who have the outcome" in text
    assert re.search(r"would cost 0\.227 ?, less than Split learning did\.", text)
    insurance.outcomes = {}
    assert "the same probability" not in Page(written(insurance, tmp_path)).text


def test_a_measure_of_some_seeds_says_of_which(insurance: Results, tmp_path: Path) -> None:
    assert "of 5 seeds" not in Page(written(insurance, tmp_path)).text
    for model in insurance.models:
        for fit in model.fits[1:]:
            del fit.metrics["auc"]
            fit.omitted["auc"] = "the 1,000 people held out are all of one class"
    insurance.outcomes = dict(enumerate([60, 0, 0, 0, 0]))
    text = written(insurance, tmp_path)
    assert text.count("<small>1 of 5 seeds</small>") == len(insurance.models)
    assert "60, 0, 0, 0 and 0 of them with the outcome (seeds 0, 1, 2, 3 and 4);" in text
    for model in insurance.models:
        del model.fits[0].metrics["auc"]
        model.fits[0].omitted["auc"] = "the 1,000 people held out are all of one class"
    text = written(insurance, tmp_path)
    assert "AUC could not be taken." in text
    assert 'class="claim"' not in text  # nor is another measure put in its place


def test_one_seed_names_no_best_model(insurance: Results, tmp_path: Path) -> None:
    assert 'class="n best"' in written(insurance, tmp_path)
    for model in insurance.models:
        del model.fits[1:]
    assert 'class="n best"' not in written(insurance, tmp_path)


def test_what_is_shown_rounds_what_is_meant(insurance: Results, tmp_path: Path) -> None:
    text = written(insurance, tmp_path)
    shown = re.findall(r'<data value="([-\d.e]+)">([−+]?[\d,]+\.\d+)</data>', text)
    assert len(shown) > 30
    for value, said in shown:
        number = float(said.replace("−", "-").replace(",", "").replace("+", ""))
        places = len(said.split(".")[1])
        assert abs(number - float(value)) <= 0.5001 * 10**-places


def test_values_that_differ_in_their_last_digit_alone_have_a_readable_scale(
    insurance: Results, tmp_path: Path
) -> None:
    for model in insurance.models:
        for fit in model.fits:
            fit.metrics["lift"] = 25 / 9 + 4e-16 * (fit.seed % 2)
    text = written(insurance, tmp_path)
    assert max(len(t) for t in re.findall(r'<text class="tick"[^>]*>([^<]*)<', text)) <= 7
    assert "2.777" not in text.replace('"2.777', "")


def test_nothing_is_fetched(results: Results, tmp_path: Path) -> None:
    text = written(results, tmp_path)
    assert not re.search(r"https?:|[\"'(=]\s*//|@import|url\(", text)
    page = Page(text)
    assert all(v.startswith("#") for _, name, v in page.attributes if name == "href")
    assert not {"src", "srcset", "xlink:href", "action", "background"} & {
        name for _, name, _ in page.attributes
    }
    assert not {"img", "link", "iframe", "object", "embed", "video", "form"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_only_the_pages_own_script_may_run(insurance: Results, tmp_path: Path) -> None:
    text = written(insurance, tmp_path)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = Page(text)
    (policy,) = (v for t, n, v in page.attributes if t == "meta" and "default-src" in v)
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


EVIL = "<script>alert(1)</script>\" onload='x' {{ 7 * 7 }} \u202e&amp;"


def test_names_are_texts_and_nothing_else(insurance: Results, tmp_path: Path) -> None:
    tags = Page(written(insurance, tmp_path)).tags
    insurance.name = insurance.description = insurance.label = insurance.job = EVIL
    insurance.command = insurance.started = insurance.machine.platform = EVIL
    for party in insurance.parties:
        old, party.name = party.name, EVIL + party.name
        for flow in insurance.flows:
            flow.sender = party.name if flow.sender == old else flow.sender
            flow.receiver = party.name if flow.receiver == old else flow.receiver
        party.learnt = party.id_notes = party.column_notes = [EVIL]
        party.privacy, party.ledger_head = {EVIL: {EVIL: EVIL}}, EVIL
    for model in insurance.models:
        model.title = model.explanation = EVIL
    insurance.models[3].skipped, insurance.models[3].fits = EVIL, []
    for flow in insurance.flows:
        flow.operation = flow.kind = flow.guard = flow.shape = flow.dtype = EVIL
    text = written(insurance, tmp_path)
    assert text.count("<script>") == 1
    page = Page(text)
    assert set(page.tags) <= set(tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    assert "{{ 7 * 7 }}" in page.text


def test_an_unfinished_run_says_so(insurance: Results, tmp_path: Path) -> None:
    assert "Not finished" not in written(insurance, tmp_path)
    insurance.finished = False
    insurance.models[1].fits = insurance.models[1].fits[:2]
    insurance.models[3].fits, insurance.models[3].skipped = [], "tables may not be joined"
    text = Page(written(insurance, tmp_path)).text
    assert "Not finished: 12 of 15 fits done" in text
    assert "tables may not be joined" in text


def test_labels_and_columns_are_said_to_stay_only_when_they_do(
    insurance: Results, tmp_path: Path
) -> None:
    claim = "No column and no label is among it"
    assert claim in written(insurance, tmp_path)
    insurance.flows[0].kind = "labels"
    assert claim not in written(insurance, tmp_path)


def test_the_page_says_what_a_newcomer_asks(insurance: Results, tmp_path: Path) -> None:
    insurance.trained_on = 2400
    insurance.parties[0].column_notes = ["<b> & `strip: true` removes them"]
    text = written(insurance, tmp_path)
    assert '<pre id="verify" tabindex="0">interlace report RUN --verify</pre>' in text
    assert "<li>&lt;b&gt; &amp; <code>strip: true</code> removes them</li>" in text
    assert "( 600 shared people have no label)" in Page(text).text
    needs = "Missing views filled in needs every party’s table in one place."
    assert needs in text
    insurance.models = [m for m in insurance.models if m.name != "mean_imputation"]
    insurance.trained_on = 2999
    text = Page(written(insurance, tmp_path)).text
    assert needs not in text
    assert "( 1 shared person has no label)" in text


def test_a_report_is_replaced_whole(insurance: Results, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    first = write_report(insurance, path)
    insurance.name = "another"
    assert write_report(insurance, path) == first == path
    assert "another" in path.read_text(encoding="utf-8")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_the_same_results_give_the_same_page(insurance: Results, tmp_path: Path) -> None:
    again = Results.model_validate_json(insurance.model_dump_json())
    assert written(insurance, tmp_path) == written(again, tmp_path)


def test_tables_have_captions_and_pictures_a_description(results: Results, tmp_path: Path) -> None:
    text = written(results, tmp_path)
    assert len(re.findall(r"<table[^>]*>\s*<caption", text)) == text.count("<table")
    for svg in re.findall(r"<svg[^>]*>", text):
        nested = ' x="' in svg  # a mark within a picture that is described or hidden
        assert nested or "aria-label=" in svg or 'aria-hidden="true"' in svg or "track" in svg
    page = Page(text)
    ids = {v for _, name, v in page.attributes if name == "id"}
    assert {v[1:] for _, name, v in page.attributes if name == "href"} <= ids
    assert [t for t in page.tags if t in ("h1", "main")] == ["main", "h1"]


def luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_and_lines_stand_out(insurance: Results, tmp_path: Path, theme: int) -> None:
    roots = re.findall(r":root \{(.*?)\}", written(insurance, tmp_path), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", roots[theme]))
    inks = ("ink", "soft", "method", "single", "upper", "other0", "other1", "other2", "other3")
    pairs = [(ink, ground) for ink in inks for ground in ("paper", "raised")]
    for ink, ground in [*pairs, ("tint-ink", "tint"), ("warn-ink", "warn")]:
        light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


MEASURE = """<!doctype html><body>{frames}<script>
addEventListener("load", () => {{
  const out = [...document.querySelectorAll("iframe")].map((f) => {{
    const d = f.contentDocument;
    const copy = [...d.querySelectorAll("button[data-copies]")].every((b) => !b.hidden);
    return `${{f.title}} ${{d.documentElement.scrollWidth - f.clientWidth}} ${{copy}}`;
  }});
  document.body.innerHTML = `<pre>${{out.join("\\n")}}</pre>`;
}});
</script></body>"""


def test_in_a_browser_no_page_is_wider_than_the_screen(
    tmp_path: Path, examples: list[Results]
) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed to lay the page out")
    frames = "".join(
        f'<iframe title="{r.name}-{width}" style="width:{width}px;height:800px;border:0" '
        f'srcdoc="{html.escape(written(r, tmp_path))}"></iframe>'
        for r in examples
        for width in (360, 768, 1280)
    )
    page = tmp_path / "all.html"
    page.write_text(MEASURE.format(frames=frames), encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    flags += " --disable-background-networking --disable-component-update --dump-dom"
    done = subprocess.run(
        [chromium, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert found is not None
    lines = found.group(1).split("\n")
    assert len(lines) == 3 * len(examples)
    for line in lines:
        frame, excess, copy = line.rsplit(" ", 2)
        assert int(excess) <= 0, frame
        assert copy == "true", frame  # the one script runs under the page's own policy


def test_how_right_the_labels_were_that_people_were_given(
    insurance: Results, tmp_path: Path
) -> None:
    assert "without a label who were given one" not in Page(written(insurance, tmp_path)).text
    fits = insurance.models[0].fits
    for fit in fits:
        fit.kept = [KeptResult(party="data vendor", of=1164, kept=400, known=390, right=351)]
    fits[0].kept[0].kept = 500
    page = Page(written(insurance, tmp_path))
    assert "Split learning data vendor 1,164 420 90 % Right: of the kept people" in page.text
    assert {1164.0, 420.0, 0.9} <= set(page.data)
    for fit in fits:
        fit.kept[0].known = fit.kept[0].right = 0
    assert (
        "1,164 420 — Whether they are right nobody knows" in Page(written(insurance, tmp_path)).text
    )

"""The page of a run at a party that answered: what it agreed to, and what left and came."""

from __future__ import annotations

from pathlib import Path

import jinja2

from interlace.boundary import Ledger
from interlace.files import write_whole
from interlace.report import words
from interlace.sites import approval
from interlace.sites.compare import against_plan
from interlace.sites.folder import PartyFolder, RunFolder

_PAGE = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>{{ run.name }} at {{ party }}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .8rem;text-align:right;
border-bottom:1px solid #ccc}td:first-child,th:first-child{text-align:left}.bad{color:#b00}
pre{white-space:pre-wrap;background:#f5f5f5;padding:1rem}</style>
<h1>{{ run.name }}</h1>
<p>{{ contract.description }}</p>
<p>'{{ party }}' answered, '{{ contract.active }}' drove. The run is {{ status.state }}.
{{ status.reason }}</p>
<h2>What left, and what was planned</h2>
<table><tr><th>kind<th>messages<th>planned<th>bytes<th>planned</tr>
{% for h in held %}<tr{% if not h.within %} class="bad"{% endif %}><td>{{ h.kind.value }}
<td>{{ count(h.messages) }}<td>{{ count(h.planned_messages) }}<td>{{ size(h.bytes) }}
<td>{{ size(h.planned_bytes) }}</tr>{% endfor %}</table>
<h2>The whole conversation</h2>
<table><tr><th>from<th>to<th>asked<th>kind<th>guard<th>messages<th>bytes</tr>
{% for f in flows %}<tr><td>{{ f.sender }}<td>{{ f.receiver }}<td>{{ f.session }}:
{{ f.operation }}<td>{{ f.kind }}<td>{{ f.guard }}<td>{{ count(f.messages) }}
<td>{{ size(f.bytes_after) }}</tr>{% endfor %}</table>
<p>Head of the ledger: <code>{{ head }}</code></p>
<h2>What was agreed</h2><pre>{{ contract.model_dump_json(indent=1) }}</pre>
{% if given %}<p>{{ given.answer }} by {{ given.by }}, {{ given.time }}. {{ given.reason }}</p>
{% endif %}</html>
"""


def write_page(folder: PartyFolder, run: RunFolder) -> Path:
    """Write ``report.html`` into the run's folder.

    Returns:
        Its path.
    """
    plan, ledger = approval.plan_kept(run), Ledger(run.ledger)
    page = jinja2.Environment(autoescape=True).from_string(_PAGE)
    text = page.render(
        run=run,
        party=folder.name,
        contract=run.contract,
        status=run.status,
        held=against_plan(plan, ledger, folder.name) if plan else [],
        flows=ledger.summary(),
        head=ledger.head,
        given=approval.answer_of(run),
        count=words.count,
        size=words.size,
    )
    path = run.path / "report.html"
    write_whole(path, text.encode())
    return path

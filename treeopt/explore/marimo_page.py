# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The page of `treeopt explore`: which piece stands where, and what it depends on; no value is made here."""

import marimo

app = marimo.App(width="full", app_title="treeopt explore", css_file="marimo_page.css")


@app.cell
def _():
    import marimo as mo

    from treeopt.engines import ENGINES
    from treeopt.explore import answer_charts, answers, controls, downloads, markup, token_prices
    from treeopt.explore.offered_files import Offer

    offer = Offer.of_files(**controls.files_of(mo.app_meta()))
    mo.Html(markup.HEADER)
    return ENGINES, answer_charts, answers, controls, downloads, markup, mo, offer, token_prices


@app.cell
def _(controls, offer):
    source = controls.source(offer)
    return (source,)


@app.cell
def _(controls, offer, source):
    steps = controls.step_times(offer, source.value["trace"], source.value["source"])
    return (steps,)


@app.cell
def _(offer, source):
    deepest = offer.trace(source.value["trace"]).depth
    return (deepest,)


@app.cell
def _(controls, deepest):
    limits = controls.limits(deepest)
    return (limits,)


@app.cell
def _(controls, offer, source, steps):
    dynamic = controls.dynamic(offer, source.value["trace"], steps.value)
    return (dynamic,)


@app.cell
def _(controls):
    price = controls.price()
    return (price,)


@app.cell
def _(dynamic, limits, markup, mo, price, source, steps):
    asked = {**limits.elements, **dynamic.elements, **price.elements}
    mo.Html(markup.panel(source.elements, steps.elements, asked))
    return


@app.cell
def _(answers, deepest, dynamic, limits, markup, mo, offer, source, steps):
    mo.output.replace(mo.Html(markup.searching(dynamic.value)))
    values = {**source.value, **steps.value, **limits.value, **dynamic.value, "deepest": deepest}
    answer = answers.attempt(values, offer)
    answered = isinstance(answer, answers.Answer)
    mo.output.replace(mo.Html(markup.status(answer)))
    return answer, answered


@app.cell
def _(answer, answered, controls, mo):
    mo.stop(not answered)
    shown = controls.shown_batch(answer.plan)
    mo.Html(f'<div class="batch-shown">{shown}</div>') if len(answer.plan.entries) > 1 else None
    return (shown,)


@app.cell
def _(answer, markup, mo, shown):
    mo.Html(markup.answer_card(answer, shown.value))
    return


@app.cell
def _(answer, markup, mo, shown):
    mo.Html(markup.configurations(answer, shown.value))
    return


@app.cell
def _(answer, answered, markup, mo, price, token_prices):
    mo.stop(not answered)
    mo.Html(markup.token_prices(token_prices.priced(answer, price.value["price"])))
    return


@app.cell
def _(answer, answer_charts, markup, mo, shown):
    figures = [answer_charts.Figure.of(chart) for chart in answer_charts.charts_of(answer, shown.value)]
    drawings = [(figure, mo.as_html(answer_charts.Drawing(figure)).text) for figure in figures]
    mo.Html(markup.figures(drawings))
    return


@app.cell
def _(ENGINES, answer, answered, controls, mo):
    mo.stop(not answered)
    engine = answer.question.engine
    export_choices = controls.handover(engine, answer.plan) if engine in ENGINES.exporting() else None
    return engine, export_choices


@app.cell
def _(answer, answers, downloads, engine, export_choices, markup, mo):
    files = [
        mo.download(downloads.plan_text(answer).encode(), filename=downloads.PLAN_FILE, label="Plan"),
        mo.download(lambda: downloads.report_text(answer).encode(), filename=downloads.REPORT_FILE, label="Report"),
    ]
    if export_choices is None:
        export_text, fields = markup.no_exporter(engine), {}
    else:
        fields, export = export_choices.elements, downloads.attempt_export(answer, **export_choices.value)
        if isinstance(export, answers.Failure):
            export_text = markup.failure_card(export)
        else:
            name = downloads.export_file(export, engine)
            files.append(mo.download(f"{export.text}\n".encode(), filename=name, label=f"Configuration for {engine}"))
            export_text = markup.handed_over(export)
    mo.Html(markup.handover(fields, export_text, files))
    return


@app.cell
def _(answer, answered, markup, mo):
    mo.stop(not answered)
    mo.Html(markup.footnotes(answer))
    return

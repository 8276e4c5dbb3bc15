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
    from treeopt.errors import TreeoptError
    from treeopt.explore import answer_parts, answers, controls
    from treeopt.explore.answers import MEASURED, Offer

    offer = Offer.of_files(**controls.files_of(mo.app_meta()))
    answer_parts.header()
    return ENGINES, MEASURED, TreeoptError, answers, controls, mo, offer, answer_parts


@app.cell
def _(controls, offer):
    trace, source = controls.trace(offer), controls.source(offer)
    predicted, limits, price = controls.predicted(offer), controls.limits(), controls.price()
    return limits, predicted, price, source, trace


@app.cell
def _(controls, offer, trace):
    measured, depth = controls.measured(offer, trace.value), controls.depth(offer.trace(trace.value).depth)
    return depth, measured


@app.cell
def _(MEASURED, answer_parts, answers, depth, limits, measured, offer, predicted, price, source, trace):
    origin = {"trace": trace.value, "source": source.value, **measured.value}
    policies, by_profile = answers.takes_policies(origin, offer), source.value == MEASURED
    of_trees = ("batches", "engine", "objective", "nodes")
    answer_parts.panel(
        (True, {"trace": trace, "source": source}),
        (by_profile, measured.elements),
        (not by_profile, predicted.elements),
        (True, {**{name: limits.elements[name] for name in of_trees}, "depth": depth}),
        (True, {"tpot": limits.elements["tpot"]}),
        (policies, {"dynamic": limits.elements["dynamic"]}),
        (True, {"price": price}),
    )
    return origin, policies


@app.cell
def _(TreeoptError, answer_parts, answers, depth, limits, mo, offer, origin, policies, predicted):
    values = {**origin, **predicted.value, **limits.value, "depth": depth.value}
    mo.output.replace(answer_parts.searching(policies=policies and values["dynamic"] != "none"))
    answer = answers.attempt(values, offer)
    answered = not isinstance(answer, TreeoptError)
    status = answer_parts.words([f"Answered in {answer.seconds:.1f} s."], role="status") if answered else None
    mo.output.replace(status or answer_parts.failure(answer))
    return answer, answered


@app.cell
def _(answer, answered, controls, mo):
    mo.stop(not answered)
    shown = controls.shown_batch(answer.plan)
    shown if len(answer.plan.entries) > 1 else None
    return (shown,)


@app.cell
def _(answer, answer_parts, shown):
    answer_parts.headline(answer, shown.value)
    return


@app.cell
def _(answer, answer_parts, shown):
    answer_parts.configurations(answer, shown.value)
    return


@app.cell
def _(answer, answered, mo, answer_parts, price):
    mo.stop(not answered)
    answer_parts.shown(answer_parts.priced(answer, price.value))
    return


@app.cell
def _(answer, answer_parts, shown):
    answer_parts.figures(answer_parts.charts_of(answer, shown.value))
    return


@app.cell
def _(ENGINES, answer, answered, controls, mo):
    mo.stop(not answered)
    engine = answer.question.search.engine
    choices = controls.handover(engine, answer.plan) if engine in ENGINES.exporting() else None
    return choices, engine


@app.cell
def _(TreeoptError, answer, answers, choices, engine, mo, answer_parts):
    files = [
        mo.download(answers.plan_text(answer).encode(), filename=answers.PLAN_FILE, label="Plan"),
        mo.download(lambda: answers.report_text(answer).encode(), filename=answers.REPORT_FILE, label="Report"),
    ]
    export = None if choices is None else answers.attempt_export(answer, **choices.value)
    if export is not None and not isinstance(export, TreeoptError):
        name = answers.export_file(export, engine)
        files.append(mo.download(f"{export.text}\n".encode(), filename=name, label=f"Configuration for {engine}"))
    fields = [] if choices is None else [mo.hstack(choices.elements.values(), wrap=True, justify="start", gap=1)]
    handed_over = answer_parts.export_parts(export, engine)
    mo.vstack([mo.Html("<h3>Downloads</h3>"), mo.hstack(files, justify="start", wrap=True), *fields, handed_over])
    return


@app.cell
def _(answer, answered, mo, answer_parts):
    mo.stop(not answered)
    answer_parts.footnotes(answer)
    return

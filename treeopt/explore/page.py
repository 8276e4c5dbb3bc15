# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The page of `treeopt explore`: controls and where answers stand; all values come from the other modules."""

import marimo

app = marimo.App(width="full", app_title="treeopt explore", css_file="page.css")


@app.cell
def _():
    import marimo as mo

    from treeopt.engines import ENGINE_RULES, ENGINES
    from treeopt.errors import TreeoptError
    from treeopt.explore import answers, downloads, page_parts, questions
    from treeopt.explore.offered_files import COUNTS, Offer, devices

    offer = Offer.of_files(**mo.app_meta().request.meta)
    mo.Html(page_parts.HEADER)
    return (
        COUNTS,
        ENGINES,
        ENGINE_RULES,
        Offer,
        TreeoptError,
        answers,
        devices,
        downloads,
        mo,
        offer,
        page_parts,
        questions,
    )


@app.cell
def _(mo, offer, questions):
    names = list(offer.traces)
    trace = mo.ui.dropdown(names, value=names[0], label="Trace", full_width=True)
    source = mo.ui.dropdown(list(questions.SOURCES), value=questions.MEASURED, label="Step times", full_width=True)
    return source, trace


@app.cell
def _(mo, offer, trace):
    profiles = offer.profiles_for(trace.value)
    profile = mo.ui.dropdown(profiles, value=profiles[0], label="Profile", full_width=True)
    deepest = offer.trace(trace.value).depth
    depth = mo.ui.slider(
        1, deepest, value=deepest, label="Depth, at most", show_value=True, debounce=True, full_width=True
    )
    return deepest, depth, profile


@app.cell
def _(COUNTS, ENGINE_RULES, devices, mo, offer, questions):
    from treeopt.defaults import NODES
    from treeopt.replay.objective import OBJECTIVES

    device = mo.ui.dropdown(devices(), value="H100 SXM", label="Device", full_width=True)
    count = mo.ui.dropdown({str(n): n for n in COUNTS}, value="1", label="Devices", full_width=True)
    sizes = list(offer.targets)
    target = mo.ui.dropdown(sizes, value=sizes[0] if len(sizes) > 4 else "8b", label="Target model", full_width=True)
    context = mo.ui.number(1, 1_000_000, value=512, label="Tokens in the cache", debounce=True, full_width=True)
    engine = mo.ui.dropdown(
        [questions.ANY_TREE, *ENGINE_RULES], value=questions.ANY_TREE, label="Engine", full_width=True
    )
    objective = mo.ui.dropdown(list(OBJECTIVES), value="throughput", label="Objective", full_width=True)
    batches = mo.ui.text("1, 4, 16", label="Batch sizes", debounce=True, full_width=True)
    nodes = mo.ui.slider(1, NODES, value=NODES, label="Nodes, at most", show_value=True, debounce=True, full_width=True)
    tpot = mo.ui.text("", placeholder="no limit", label="ms per token, at most", debounce=True, full_width=True)
    return NODES, batches, context, count, device, engine, nodes, objective, target, tpot


@app.cell
def _(
    batches,
    context,
    count,
    depth,
    device,
    engine,
    mo,
    nodes,
    objective,
    page_parts,
    profile,
    questions,
    source,
    target,
    tpot,
    trace,
):
    steps = (profile,) if source.value == questions.MEASURED else (device, count, target, context)
    mo.Html(page_parts.panel((trace, source, *steps), (batches, engine, objective, nodes, depth, tpot)))
    return


@app.cell
def _(
    NODES, TreeoptError, answers, batches, context, count, deepest, depth, device, engine, mo, nodes, objective,
    offer, page_parts, profile, questions, source, target, tpot, trace,
):  # fmt: skip
    mo.output.replace(mo.Html(page_parts.SEARCHING))
    try:
        answer = answers.attempt(
            questions.Question(
                trace.value,
                profile.value
                if source.value == questions.MEASURED
                else questions.Device(device.value, count.value, target.value, context.value),
                questions.batch_sizes(batches.value),
                None if engine.value == questions.ANY_TREE else engine.value,
                questions.below(nodes.value, NODES),
                questions.below(depth.value, deepest),
                questions.limit_s(tpot.value),
                objective.value,
            ),
            offer,
        )
    except TreeoptError as error:
        answer = answers.failure(error)
    answered = isinstance(answer, answers.Answer)
    mo.output.replace(mo.Html(page_parts.status(answer)))
    return answer, answered


@app.cell
def _(answer, answered, mo):
    mo.stop(not answered)
    planned = {str(entry.batch): entry.batch for entry in answer.plan.entries}
    shown = mo.ui.radio(planned, value=next(iter(planned)), label="Batch shown", inline=True)
    mo.Html(f'<div class="batch-shown">{shown}</div>') if len(planned) > 1 else None
    return planned, shown


@app.cell
def _(answer, mo, page_parts, shown):
    mo.Html(page_parts.answer_card(answer, shown.value))
    return


@app.cell
def _(answer, mo, page_parts, shown):
    mo.Html(page_parts.configurations(answer, shown.value))
    return


@app.cell
def _(answer, answered, downloads, engine, mo, planned, questions):
    mo.stop(not answered)
    chosen = None if engine.value == questions.ANY_TREE else engine.value
    method = mo.ui.dropdown(["by the drafter", *downloads.methods_of(chosen)], value="by the drafter", label="Method")
    model = mo.ui.text("", placeholder="not named", label="Drafter's checkpoint", debounce=True)
    exported_batch = mo.ui.dropdown({"all": None, **planned}, value="all", label="Batch exported")
    return chosen, exported_batch, method, model


@app.cell
def _(ENGINES, TreeoptError, answer, answers, chosen, downloads, exported_batch, method, mo, model, page_parts):
    files = [mo.download(downloads.plan_text(answer).encode(), filename=downloads.PLAN_FILE, label="Plan")]
    controls, text = (), page_parts.no_exporter(chosen)
    if chosen in ENGINES:
        controls = (method, model, exported_batch)
        handover = downloads.Handover(
            chosen,
            None if method.value == "by the drafter" else method.value,
            model.value or None,
            exported_batch.value,
        )
        try:
            export = downloads.exported(answer, handover)
        except TreeoptError as error:
            text = page_parts.failure_card(answers.failure(error))
        else:
            name = downloads.export_file(export, chosen)
            files.append(mo.download(f"{export.text}\n".encode(), filename=name, label=f"Configuration for {chosen}"))
            text = page_parts.handed_over(export)
    mo.Html(page_parts.handover(controls, text, files))
    return


@app.cell
def _(answer, answered, mo, page_parts):
    mo.stop(not answered)
    mo.Html(page_parts.footnotes(answer))
    return

"""The JSON Schemas that are shipped: current, valid, and met by every shipped file and by every fresh one."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from simulate.profiles.profile import SCHEMA as PROFILE
from simulate.profiles.profile import load_profile, save_profile
from simulate.validation.predicted_vs_measured import SCHEMA as VALIDATION
from simulate.validation.predicted_vs_measured import ValidationRecord
from simulate.validation.predictions import SCHEMA as PREDICTIONS
from simulate.validation.predictions import load_predictions, save_predictions
from tests.helpers.printed_results import record
from tests.helpers.slow_growth import POLICIES
from tests.helpers.write_schemas import FORMATS, document, path_of
from treeopt.plans import BEFORE, PlanRecord, load_plan, save_plan
from treeopt.plans import SCHEMA as PLAN
from treeopt.policies import POLICIES as KINDS
from treeopt.policies.policy_kinds import to_record
from treeopt.results.kinds import RESULTS, kind_of_schema
from treeopt.storage.json_records import RecordError
from treeopt.storage.typed_records import read_record
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import SCHEMAS as TRACE
from treeopt.traces.trace_files import load_trace, save_trace

PROFILES = sorted(shipped("profiles").glob("*.json"))
PREDICTED = sorted(shipped("validations").glob("*.predictions.json"))
VALIDATIONS = sorted(set(shipped("validations").glob("*.json")) - set(PREDICTED))
TRACES = sorted(shipped("traces").glob("*.npz"))
# Of before fields that came later, or with a plan of the schema before: saved again, they gain those.
OLDER = {
    "eagle-policies-cpu.json",
    "medusa-two-threads.json",
    "random-100m-two-threads.json",
    "smollm2-eagle-cpu.json",
    "medusa-two-threads.predictions.json",
    "random-100m-two-threads.predictions.json",
    "smollm2-eagle-cpu.predictions.json",
}


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(path_of(name).read_text("utf-8")))


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def meta_of(path: Path) -> Any:
    with np.load(path) as arrays:
        return json.loads(arrays["meta"].tobytes())


@pytest.mark.parametrize("name", FORMATS)
def test_shipped_schemas_are_what_the_types_say(name):
    """Else: `make schemas`."""
    assert read(path_of(name)) == document(FORMATS[name])
    Draft202012Validator.check_schema(document(FORMATS[name]))


def test_no_other_schema_is_shipped():
    assert sorted(path_of("plan").parent.iterdir()) == sorted(path_of(name) for name in FORMATS)


def test_schemas_are_of_the_versions_that_are_written():
    for name, kind in FORMATS.items():
        found = document(kind)["$defs"][kind.__name__]["properties"]["schema"]["enum"]
        written, *before = (RESULTS[name].schema, BEFORE) if name in RESULTS else TRACE
        assert written in found
        assert set(found) <= {written, *before}
    written = [RESULTS[name].schema for name in ("plan", "predictions", "profile", "validation")]
    assert written == [PLAN, PREDICTIONS, PROFILE, VALIDATION]
    assert set(get_args(get_type_hints(PlanRecord)["schema"])) == {BEFORE, PLAN}


def test_records_of_policies_have_the_fields_of_policies():
    assert {kind.record.__struct_config__.tag: kind.policy for kind in KINDS.values()} == {
        name: kind.policy for name, kind in KINDS.items()
    }
    for policy in POLICIES:
        record = to_record(policy)
        older = {"budget"} if record["kind"] == "dynamic-tree" else set()  # null in files of before 0.1.0
        assert {"kind", *KINDS[record["kind"]].record.__struct_fields__} == record.keys() | older


@pytest.mark.parametrize("path", [*PROFILES, *TRACES], ids=lambda path: path.stem)
def test_shipped_profiles_and_traces_meet_their_schema(path):
    name, reader = ("profile", read) if path in PROFILES else ("trace_meta", meta_of)
    validator(name).validate(reader(path))


@pytest.mark.parametrize("path", PREDICTED, ids=lambda path: path.stem)
def test_shipped_predictions_and_their_plans_meet_their_schemas(path, tmp_path):
    validator("predictions").validate(read(path))
    validator("plan").validate(read(path)["plan"])
    save_plan(load_predictions(path).plan, tmp_path / "plan.json")
    validator("plan").validate(read(tmp_path / "plan.json"))
    first = (tmp_path / "plan.json").read_bytes()
    save_plan(load_plan(tmp_path / "plan.json"), tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_bytes() == first


@pytest.mark.parametrize("path", VALIDATIONS, ids=lambda path: path.stem)
def test_shipped_validations_meet_their_schema(path):
    validator("validation").validate(read(path))
    read_record(read(path), ValidationRecord)


@pytest.mark.parametrize("name", ["run", "server", "capacity", "whatif", "compare"])
def test_fresh_results_meet_their_schemas(name):
    kind = kind_of_schema(record(name)["schema"])
    validator(kind.name).validate(record(name))
    assert kind.of_record(record(name)) == record(name)


@pytest.mark.parametrize("path", [*PROFILES, *PREDICTED], ids=lambda path: path.stem)
def test_shipped_files_are_saved_as_they_are(path, tmp_path):
    """Byte for byte, but for those of before fields that came later, which hold the same."""
    load, save = (load_predictions, save_predictions) if path in PREDICTED else (load_profile, save_profile)
    value = load(path)
    save(value, tmp_path / "again.json")
    assert ((tmp_path / "again.json").read_bytes() == path.read_bytes()) == (path.name not in OLDER)
    if path not in PREDICTED:  # a plan of the schema before has another hash when it is saved
        assert load(tmp_path / "again.json") == value


def test_a_saved_trace_has_the_meta_that_was_read(tmp_path):
    for path in (TRACES[0], shipped("traces/medusa-typical.npz")):
        save_trace(load_trace(path), tmp_path / "t.npz")
        assert meta_of(tmp_path / "t.npz") == meta_of(path) | {"schema": TRACE[0]}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_policies_meet_the_schema_of_plans(policy):
    plan = document(FORMATS["plan"])
    records = [name for name in plan["$defs"] if name.endswith(("TreeRecord", "AwareRecord")) and name != "TreeRecord"]
    schema = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in records], "$defs": plan["$defs"]}
    assert len(records) == len(KINDS)
    Draft202012Validator(schema).validate(json.loads(json.dumps(to_record(policy))))


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("plan", ("entries",), []),
        ("plan", ("entries", 0, "choice", "tau", "value"), "2"),
        ("profile", ("batches", 0, "draft", 0), [1]),
        ("validation", ("cells", 0, "covered"), "yes"),
        ("trace_meta", ("domain_names",), [1]),
    ],
)
def test_what_readers_refuse_breaks_the_schema(name, place, value):
    records = {
        "plan": read(PREDICTED[0])["plan"],
        "predictions": read(PREDICTED[0]),
        "profile": read(PROFILES[0]),
        "trace_meta": meta_of(TRACES[0]),
        "validation": read(VALIDATIONS[0]),
    }
    record = deepcopy(records[name])
    holder = record
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    assert list(validator(name).iter_errors(record))
    with pytest.raises(RecordError):
        read_record(record, FORMATS[name])

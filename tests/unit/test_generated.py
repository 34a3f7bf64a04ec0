"""Generated files match the code, and describe each field of a job."""

import pytest

from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.submitted import submitted_fields
from evenkeel.runtime.request_bodies import JobBody
from tools import fault_columns, field_docs, generate, job_fields


def test_generated_files_match_the_code() -> None:
    assert generate.stale_files() == [], "run `make generate` and commit the files"


def test_every_submission_field_has_a_description() -> None:
    undescribed_fields = [".".join(field.path) for field in job_fields.fields() if not field.text]

    assert undescribed_fields == []


def test_request_body_keeps_the_field_descriptions_of_its_domain_class() -> None:
    schema = JobBody.model_json_schema(schema_generator=field_docs.DescribedSchema)

    assert schema["properties"]["gpusPerNode"]["description"] == field_docs.field_doc(JobSpec, "accelerators_per_node")


@pytest.mark.parametrize("name", ["pools", "tolerations"])
def test_internal_field_of_a_job_cannot_be_submitted(name: str) -> None:
    assert name in JobSpec.model_fields
    assert name not in {submitted_field.name for submitted_field in submitted_fields(JobSpec)}


def test_every_column_of_the_fault_table_has_a_meaning() -> None:
    _, _, *rows = fault_columns.rows()

    assert [row for row in rows if "|  |" in row] == []

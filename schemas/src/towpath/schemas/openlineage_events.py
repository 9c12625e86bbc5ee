"""
Sends events with OpenLineage's own client, which reads its variables and file itself.

Its transport decides where events go (HTTP, a file, Kafka and others) and how often it
retries; only the reporter's thread calls it. Datasets contain no values of rows, and
only the scheme, host and port of an address. The event of a failed run has the text of
the error, which may quote a value.
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

from openlineage.client import OpenLineageClient, event_v2, set_producer
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    column_lineage_dataset,
    error_message_run,
    job_type_job,
    schema_dataset,
)

from towpath.schemas.lineage import (
    Dataset,
    DatasetName,
    Job,
    JobDatasets,
    RunEvent,
    Send,
)

# The variable that other integrations of OpenLineage read too.
NAMESPACE: Final = "OPENLINEAGE_NAMESPACE"
_DEFAULT_NAMESPACE: Final = "towpath"
_INTEGRATION: Final = "TOWPATH"


def sender(environ: Mapping[str, str]) -> Send:
    """Return the function that sends an event over the configured transport."""
    set_producer(f"urn:towpath:{version('towpath-schemas')}")
    namespace = environ.get(NAMESPACE) or _DEFAULT_NAMESPACE
    client = OpenLineageClient()

    def send(event: RunEvent, datasets: JobDatasets) -> None:
        client.emit(document_of(event, datasets, namespace))

    return send


def document_of(
    event: RunEvent, datasets: JobDatasets, namespace: str
) -> event_v2.RunEvent:
    """Return an event as OpenLineage's client sends it."""
    return event_v2.RunEvent(
        eventType=event_v2.RunState(event.state),
        eventTime=event.at.isoformat(),
        run=event_v2.Run(event.run_id, facets=_run_facets(event)),
        job=event_v2.Job(namespace, event.job.name, facets=_job_facets(event.job)),
        inputs=[
            event_v2.InputDataset(*each.name, facets=_dataset_facets(each))
            for each in datasets.inputs
        ],
        outputs=[
            event_v2.OutputDataset(*each.name, facets=_dataset_facets(each))
            for each in datasets.outputs
        ],
    )


def _run_facets(event: RunEvent) -> dict[str, RunFacet]:
    if event.failure is None:
        return {}
    failure = error_message_run.ErrorMessageRunFacet(event.failure, "PYTHON")
    return {"errorMessage": failure}


def _job_facets(job: Job) -> dict[str, JobFacet]:
    processing = "STREAMING" if job.is_streaming else "BATCH"
    kind = job_type_job.JobTypeJobFacet(processing, _INTEGRATION, job.kind)
    return {"jobType": kind}


def _dataset_facets(dataset: Dataset) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {}
    if dataset.fields:
        fields = [
            schema_dataset.SchemaDatasetFacetFields(each.name, each.type)
            for each in dataset.fields
        ]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields)
    if dataset.origins:
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(
            fields={
                name: column_lineage_dataset.Fields([_input(*one) for one in origins])
                for name, origins in dataset.origins.items()
            }
        )
    return facets


def _input(dataset: DatasetName, column: str) -> column_lineage_dataset.InputField:
    return column_lineage_dataset.InputField(*dataset, column)

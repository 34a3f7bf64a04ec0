"""The files and the answer of `evenkeel plan`: documents about queues, nodes and jobs, their replay, and the report.

The files: `queue_manifests.py`, `workload_manifests.py`, `node_manifests.py`, `topology_manifests.py` and
`configuration.py` (Kueue), `hyperpod_cluster_policy.py` (SageMaker), `short_form.py` (Evenkeel), `setup.py` (all of
them together), and `quota_formats.py` (conversion). `node_terms.py` and `profiles.py` are small, because every function
that knows teams loads them.

The plan: `plan_events.py`, `replay.py`, `plan_report.py`, `why.py` and `admitting_change.py`. It runs the scheduler of
`domain/kueue`.
"""

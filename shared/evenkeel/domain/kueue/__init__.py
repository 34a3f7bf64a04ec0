"""Queues that share quota: how much a queue may use, which workload is next, and which workloads are preempted.

The scheduler:

    objects.py       queues, cohorts, flavors (configuration) and workloads
    capacity.py      quota, use and borrowing over a tree of cohorts
    flavors.py       the flavors of each pod set, and whether they need preemption
    preemption.py    the victims, in the classical order
    fair_sharing.py  the victims and the order of the heads, by shares
    pending_queue.py the pending workloads of a queue: its head, parked and sticky workloads
    recent_use.py    recent use of sub-queues
    snapshot.py      the state that a Kueue cycle reads
    nomination.py    flavors and victims for one head
    cycle.py         one Kueue cycle
    scheduler.py     queues and workloads from cycle to cycle

`eviction_loops.py` recognises jobs that evict each other without end. `domain/queue_simulation` reads Kueue's
manifests.

The rules are Kueue's, version 0.20 (https://kueue.sigs.k8s.io/docs/concepts/). SageMaker HyperPod task governance uses
the same rules. Each rule beyond them has its own switch in `SchedulerRules`. The code uses no clock, network or
storage, and every tie is broken. Unlike the rest of the domain, these modules change values in place. A Kueue cycle
tries thousands of workloads in one snapshot, and undoes each try.
"""

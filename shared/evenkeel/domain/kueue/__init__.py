"""Queues that share quota: who may use how much, who goes next, and who has to give way.

    objects.py       what is configured and what is asked for: queues, cohorts, flavors, workloads
    capacity.py      the algebra of quota, use and borrowing over a tree of cohorts
    flavors.py       which flavor each pod set gets, and in which mode: it fits, others must go, or it does not
    preemption.py    who has to go, in the classical order
    fair_sharing.py  who has to go, and who goes first, by shares
    pending.py       a queue's waiting workloads: its head, what is parked, what is sticky
    cycle.py         one scheduling cycle over all of it

The rules are Kueue's (version 0.20, https://kueue.sigs.k8s.io/docs/concepts/), which SageMaker HyperPod task governance
inherits; what goes beyond them has a switch of its own. Without clock, network and storage; deterministic to the last
tie. Unlike the rest of the domain these modules change what they hold in place: a cycle weighs thousands of workloads
against one snapshot, and undoes what it only tried.
"""

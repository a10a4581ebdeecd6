"""The fault table, row by row."""

from __future__ import annotations

import pytest

from faults import clocks, down, exact, full, late, nodes, replies
from faults.drive import Maker
from faults.machine import hogs
from support.servers import SERVERS, executable_of
from support.topologies import start_cluster, start_watched

AWAITED = Maker("async")


def test_checks_go_on_when_the_server_is_killed(report, colour, ours):
    report.measure("killed", colour, down.killed, ours)


@pytest.mark.parametrize("on_outage", ["local", "open", "closed"])
def test_fronts_answer_by_on_outage_when_the_server_is_killed(report, colour, on_outage):
    report.measure(f"killed, {on_outage}", colour, down.statuses, colour, on_outage)


def test_processes_take_their_share_when_the_server_is_down(report, colour, ours, crowd):
    report.measure("share", colour, down.share, ours, crowd)


def test_frozen_server_costs_a_deadline_and_then_next_to_nothing(report, colour, ours):
    report.measure("frozen", colour, late.frozen, ours)


def test_late_replies_do_not_stall_others(report, colour, ours):
    report.measure("slow", colour, late.slow, ours)


def test_script_forgotten_under_load_is_no_outage(report, colour, ours):
    report.measure("flush", colour, exact.flush, ours)


def test_first_check_after_a_restart_is_quick(report, colour, ours):
    report.measure("restart", colour, down.restart, ours)


@pytest.mark.parametrize("server_name", SERVERS)
def test_exhausted_subjects_stay_refused_when_memory_is_full(report, colour, ours, server_name):
    report.measure("memory", colour, full.memory, ours, executable_of(server_name))


@pytest.mark.parametrize("name", replies.REPLIES)
def test_answer_that_is_no_decision_follows_on_outage(report, colour, ours, name):
    report.measure("replies", colour, replies.answered, ours, replies.REPLIES[name])


@pytest.mark.parametrize("state", replies.STATES)
def test_state_of_a_real_server_follows_on_outage(report, colour, ours, state):
    report.measure("replies", colour, replies.in_state, ours, state)


def test_processes_and_tasks_admit_exactly_the_maximum(report, colour, ours, crowd, shared_server):
    report.measure("exact", colour, exact.together, ours, crowd, shared_server)


def test_processes_and_tasks_admit_exactly_the_maximum_when_processors_are_busy(report, colour, ours, crowd, shared_server):
    with hogs():
        report.measure("hogs", colour, exact.together, ours, crowd, shared_server)


def test_blocked_event_loop_is_no_outage(report):
    report.measure("blocked", "async", late.blocked, AWAITED)


def test_clocks_of_clients_do_not_count(report, colour, ours):
    report.measure("client clock", colour, clocks.client_clocks, ours)


def test_clock_of_the_server_set_back_neither_admits_more_nor_locks_out(report, colour, ours):
    report.measure("server clock", colour, clocks.server_clock, ours)


def test_cancelled_checks_do_not_disturb_others(report):
    report.measure("cancelled", "async", exact.cancelled, AWAITED)


def test_cut_connections_charge_nobody_twice(report, colour, ours):
    report.measure("client kill", colour, exact.client_kill, ours)


def test_many_processes_fit_into_few_clients(report, colour, ours, crowd):
    report.measure("max clients", colour, exact.max_clients, ours, crowd)


@pytest.fixture(scope="module")
def cluster():
    with start_cluster(primaries=3, replicas=1, node_timeout_ms=1000) as running:
        yield running


def test_slot_that_moves_under_load_admits_nobody_more(report, colour, ours, cluster):
    report.measure("migration", colour, nodes.migration, ours, cluster)


def test_cluster_is_used_again_after_its_promotion(report, colour, ours):
    with start_cluster(primaries=3, replicas=1, node_timeout_ms=1000) as cluster:
        report.measure("promotion", colour, nodes.promotion, ours, cluster)


def test_promoted_replica_is_used_when_sentinels_say_so(report, colour, ours):
    with start_watched() as watched:
        report.measure("sentinel", colour, nodes.sentinel, ours, watched)


def test_flood_of_identities_is_bounded_when_the_server_is_down(report, colour, ours):
    report.measure("flood", colour, full.flood, ours)

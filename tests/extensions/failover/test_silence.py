"""Endpoints that don't answer: suspicion, proof, retries with backoff, and bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nftproxy.extensions.failover import silence
from nftproxy.extensions.failover.silence import ProbeAnswer, Silence
from nftproxy.model.addresses import Address
from nftproxy.model.objects import Place

# The promises of docs/semantics.md, in connections and seconds. The other figures are from silence.py.
THRESHOLD = 3
CONFIRMATION, SUSPECT_PAUSE, ACQUITTAL = 0.5, 1.0, 5.0
FIRST_PAUSE, LONGEST_PAUSE, RETRY_PATIENCE = 1.0, 60.0, 2.0
PROBATION, TRIAL = 300.0, 600.0
MOST_KNOWN = 4096
REFUSED_AGAIN = 1.0

DEAD, OTHER, THIRD = (Place(Address(f"10.1.{node}.4"), 8080) for node in (1, 2, 3))


def fallen(*places: Place, at: float = 0.0) -> Silence:
    """Endpoints that have fallen silent, in this order."""
    known = Silence()
    for place in places or (DEAD,):
        fall(known, place, at)
        at += 1
    return known


def fall(known: Silence, place: Place, at: float) -> None:
    """Let an endpoint fall silent."""
    known.observe({place: THRESHOLD}, at)
    assert (place, CONFIRMATION) in known.pop_due_probes(at)
    known.record_probe(place, at, ProbeAnswer.NONE)
    assert place in known.silent


def pauses(known: Silence, place: Place, begin: float, count: int) -> list[float]:
    """The lengths of the pauses before the next retries, if none is answered."""
    found, last = list[float](), begin
    while len(found) < count:
        now = last + 0.5
        while not (due := known.pop_due_probes(now)):
            now += 0.5
        assert due == [(place, RETRY_PATIENCE)]
        found.append(now - last)
        known.record_probe(place, now, ProbeAnswer.NONE)
        last = now
    return found


def test_threshold_and_an_unanswered_connection_of_ours_make_an_endpoint_silent() -> None:
    """An endpoint is silent if clients' connections reach the threshold and our connection fails, too."""
    known = Silence()
    known.observe({DEAD: THRESHOLD}, 0)
    assert not known.silent
    assert known.pop_due_probes(0) == [(DEAD, CONFIRMATION)]
    known.record_probe(DEAD, 0.5, ProbeAnswer.NONE)
    assert known.silent == (DEAD,)


def test_fewer_connections_than_the_threshold_prove_nothing() -> None:
    """One or two connections without reply are lost packets, even if a probe fails, and the probe is repeated."""
    known = Silence()
    known.observe({DEAD: THRESHOLD - 1}, 0)
    known.pop_due_probes(0)
    known.record_probe(DEAD, 0.5, ProbeAnswer.NONE)
    assert not known.silent
    assert known.pop_due_probes(0.4 + SUSPECT_PAUSE) == []
    assert known.pop_due_probes(0.5 + SUSPECT_PAUSE) == [(DEAD, CONFIRMATION)]
    known.observe({DEAD: THRESHOLD}, 2)
    assert known.silent == (DEAD,)


def test_connections_that_got_their_reply_prove_nothing() -> None:
    """A failed probe makes no endpoint silent if all of its clients have had a reply meanwhile."""
    known = Silence()
    known.observe({DEAD: THRESHOLD}, 0)
    known.pop_due_probes(0)
    known.observe({}, 0.25)
    known.record_probe(DEAD, 0.5, ProbeAnswer.NONE)
    assert known.silent == ()


def test_a_probe_that_could_not_be_made_proves_nothing() -> None:
    """A suspect that the node couldn't try, even if it refused a client, isn't silent.  It is tried again."""
    known = Silence()
    known.observe({DEAD: THRESHOLD}, 0, refused={DEAD})
    known.pop_due_probes(0)
    known.record_probe(DEAD, 0.5, ProbeAnswer.UNTRIED)
    assert not known.silent
    assert known.pop_due_probes(0.4 + SUSPECT_PAUSE) == []
    assert known.pop_due_probes(0.5 + SUSPECT_PAUSE) == [(DEAD, CONFIRMATION)]


def test_a_silent_endpoint_that_can_not_be_tried_comes_back_in_the_end() -> None:
    """If the node can't connect for long, a silent endpoint comes back as if its retries had no answer."""
    known = fallen()
    known.record_probe(DEAD, TRIAL - 1, ProbeAnswer.UNTRIED)
    assert known.silent == (DEAD,)
    known.record_probe(DEAD, TRIAL, ProbeAnswer.UNTRIED)
    assert not known.silent


def test_endpoints_fall_silent_together() -> None:
    """Each endpoint that a look finds is tried once, and the first to fail is silent for longest."""
    known = Silence()
    known.observe(dict.fromkeys((DEAD, OTHER, THIRD), THRESHOLD), 0)
    assert known.pop_due_probes(0) == [(place, CONFIRMATION) for place in (DEAD, OTHER, THIRD)]
    assert known.pop_due_probes(0.4) == []
    for place, now in ((THIRD, 0.5), (DEAD, 0.6)):
        known.record_probe(place, now, ProbeAnswer.NONE)
    assert known.silent == (THIRD, DEAD)
    known.record_probe(OTHER, 0.7, ProbeAnswer.ACCEPTED)
    known.observe({}, 0.7 + ACQUITTAL)
    assert (known.silent, len(known)) == ((THIRD, DEAD), 2)


def test_suspect_that_answers_us_stays_and_is_left_in_peace() -> None:
    """An endpoint that is hidden from some clients, or loses packets, stays, and isn't tried at every loss."""
    known = Silence()
    known.observe({DEAD: 50}, 0)
    known.pop_due_probes(0)
    known.record_probe(DEAD, 0.1, ProbeAnswer.ACCEPTED)
    known.observe({DEAD: 50}, ACQUITTAL)
    assert (known.silent, known.pop_due_probes(ACQUITTAL)) == ((), [])
    known.observe({DEAD: 50}, ACQUITTAL + 0.1)
    assert known.pop_due_probes(ACQUITTAL + 0.1) == [(DEAD, CONFIRMATION)]


def test_suspect_that_nobody_misses_any_more_is_forgotten() -> None:
    """Without connections that lack a reply no endpoint is remembered or tried."""
    known = Silence()
    known.observe({DEAD: 1}, 0)
    known.pop_due_probes(0)
    known.record_probe(DEAD, 0.5, ProbeAnswer.NONE)
    known.observe({}, ACQUITTAL)
    assert len(known) == 0
    assert known.pop_due_probes(100) == []


def test_suspect_that_answered_is_remembered_while_it_is_left_in_peace() -> None:
    """An endpoint that answered our connection is remembered for a fixed time, with or without missing replies."""
    known = Silence()
    known.observe({DEAD: 1}, 0)
    known.pop_due_probes(0)
    known.record_probe(DEAD, 0.5, ProbeAnswer.ACCEPTED)
    known.observe({}, 0.4 + ACQUITTAL)
    assert len(known) == 1
    known.observe({}, 0.5 + ACQUITTAL)
    assert len(known) == 0


def test_answer_that_comes_late_changes_nothing() -> None:
    """An endpoint on probation without missing replies is neither tried again nor kept for longer."""
    for answer in (ProbeAnswer.NONE, ProbeAnswer.ACCEPTED):
        known = fallen()
        known.pop_due_probes(1)
        known.record_probe(DEAD, 1, ProbeAnswer.ACCEPTED)
        known.observe({DEAD: 1}, 2)
        known.pop_due_probes(2)
        known.observe({}, 2 + ACQUITTAL)
        known.record_probe(DEAD, 100, answer)
        assert known.pop_due_probes(200) == []
        known.observe({}, 2 + ACQUITTAL + PROBATION)
        assert len(known) == 0


def test_memory_is_bounded() -> None:
    """Of five thousand endpoints without reply, the documented number is watched and tried."""
    known = Silence()
    known.observe({Place(Address(f"10.1.{n // 250}.{n % 250}"), 80): 1 for n in range(5000)}, 0)
    assert len(known) == len(known.pop_due_probes(0)) == MOST_KNOWN


def places(node: int, count: int) -> list[Place]:
    """So many endpoints of a node."""
    return [Place(Address(f"10.{node}.{n // 250}.{n % 250 + 1}"), 80) for n in range(count)]


def test_a_namespace_that_fills_the_memory_makes_room_for_others() -> None:
    """A namespace with more dead endpoints than are remembered loses some to a namespace that has fewer, up to half."""
    known, evil, shop = Silence(), places(1, 5000), places(2, 3000)
    of = dict.fromkeys(evil, ("evil",)) | dict.fromkeys(shop, ("shop",))
    known.observe(dict.fromkeys(evil, 1), 0, of)
    known.observe(dict.fromkeys(shop[:10], 1), 1, of)
    assert len(known) == MOST_KNOWN
    assert all(place in known for place in (*evil[: MOST_KNOWN - 10], *shop[:10]))
    known.observe(dict.fromkeys(shop, 1), 2, of)
    known.observe(dict.fromkeys(evil, 1), 3, of)
    assert [sum(place in known for place in each) for each in (evil, shop)] == [MOST_KNOWN / 2, MOST_KNOWN / 2]


def test_who_has_an_endpoint_too_takes_no_room_from_its_owner() -> None:
    """An endpoint of several namespaces takes room from the namespace with the fewest endpoints."""
    known, evil = Silence(), places(1, MOST_KNOWN)
    known.observe(dict.fromkeys(evil, 1), 0, dict.fromkeys(evil, ("evil",)))
    known.observe({DEAD: 1}, 1, {DEAD: ["evil", "shop"]})
    assert (DEAD in known, known.namespace_of(DEAD), evil[-1] in known) == (True, "shop", False)


def test_room_is_free_again_when_endpoints_go() -> None:
    """Nothing is left of a namespace whose endpoints have gone."""
    known, evil, shop = Silence(), places(1, MOST_KNOWN), places(2, MOST_KNOWN)
    of = dict.fromkeys(evil, ("evil",)) | dict.fromkeys(shop, ("shop",))
    known.observe(dict.fromkeys(evil, 1), 0, of)
    known.retain(())
    known.observe(dict.fromkeys(shop, 1), 1, of)
    assert all(place in known for place in shop)


def test_retries_have_pauses_that_double_up_to_the_longest() -> None:
    """A silent endpoint is retried after 1, 2, 4 s and so on, up to the longest pause."""
    assert pauses(fallen(), DEAD, 0, 8) == [FIRST_PAUSE, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE]


@pytest.mark.parametrize("answer", [ProbeAnswer.REFUSED, ProbeAnswer.NONE])
def test_an_endpoint_that_refuses_clients_and_us_is_silent_until_it_accepts(answer: ProbeAnswer) -> None:
    """A single refusal suffices if our own connection isn't accepted either, and then no reset counts as an answer."""
    known = Silence()
    known.observe({}, 0, refused={DEAD})
    assert known.pop_due_probes(0) == [(DEAD, CONFIRMATION)]
    assert not known.silent
    known.record_probe(DEAD, 0, answer)
    assert known.silent == (*known.refusing,) == (DEAD,)
    assert known.pop_due_probes(FIRST_PAUSE) == [(DEAD, RETRY_PATIENCE)]
    known.record_probe(DEAD, FIRST_PAUSE, ProbeAnswer.REFUSED)
    assert known.silent == (DEAD,)
    known.pop_due_probes(3 * FIRST_PAUSE)
    known.record_probe(DEAD, 3 * FIRST_PAUSE, ProbeAnswer.ACCEPTED)
    assert not known.silent


def test_refusals_of_an_endpoint_that_accepts_us_prove_nothing() -> None:
    """An endpoint that refuses some clients and accepts our connection stays, and is probed once a second at most."""
    known = Silence()
    for now in (0.0, REFUSED_AGAIN, 2 * REFUSED_AGAIN):
        known.observe({}, now, refused={DEAD})
        assert known.pop_due_probes(now) == [(DEAD, CONFIRMATION)]
        known.record_probe(DEAD, now, ProbeAnswer.ACCEPTED)
        known.observe({}, now + 0.75 * REFUSED_AGAIN, refused={DEAD})
        assert known.pop_due_probes(now + 0.75 * REFUSED_AGAIN) == []
    assert not known.silent


def test_a_reset_is_an_answer_of_an_endpoint_that_refused_no_client() -> None:
    """A suspect that resets our connection is well, and so is a silent endpoint that answers a retry with a reset."""
    known = Silence()
    known.observe({DEAD: THRESHOLD}, 0)
    known.pop_due_probes(0)
    known.record_probe(DEAD, 0, ProbeAnswer.REFUSED)
    assert not known.silent
    known = fallen()
    known.pop_due_probes(FIRST_PAUSE)
    known.record_probe(DEAD, FIRST_PAUSE, ProbeAnswer.REFUSED)
    assert not known.silent


def test_endpoint_comes_back_when_a_retry_is_answered() -> None:
    """It is no longer silent at once, and all other silent endpoints still are."""
    known = fallen(DEAD, OTHER)
    assert set(known.silent) == {DEAD, OTHER}
    known.pop_due_probes(2)
    known.record_probe(DEAD, 2, ProbeAnswer.ACCEPTED)
    assert known.silent == (OTHER,)


def test_endpoint_that_came_back_is_suspect_at_once() -> None:
    """An endpoint that was silent just now, and still leaves clients without reply, isn't left in peace."""
    known = fallen()
    known.pop_due_probes(1)
    known.record_probe(DEAD, 1, ProbeAnswer.ACCEPTED)
    known.observe({DEAD: 1}, 1)
    assert known.pop_due_probes(1) == [(DEAD, CONFIRMATION)]


def test_flapping_doubles_the_first_pause_until_it_was_well_for_long() -> None:
    """An endpoint that falls again on probation gets twice the last pause, and after probation the first."""
    known, now, found = Silence(), 0.0, list[float]()
    for _ in range(5):
        fall(known, DEAD, now)
        began = now
        while not known.pop_due_probes(now):
            now += 0.5
        found.append(now - began)
        known.record_probe(DEAD, now, ProbeAnswer.ACCEPTED)
        now += 10
    assert found == [1, 2, 4, 8, 16]
    came_back = now - 10
    known.observe({}, came_back + PROBATION - 0.1)
    assert len(known) == 1
    known.observe({}, came_back + PROBATION)
    assert len(known) == 0


def test_suspicion_on_probation_does_not_shorten_the_pauses() -> None:
    """A lost packet after a fall is no reason to forget the fall."""
    known = fallen()
    known.pop_due_probes(1)
    known.record_probe(DEAD, 1, ProbeAnswer.ACCEPTED)
    known.observe({DEAD: 1}, 2)
    known.pop_due_probes(2)
    known.record_probe(DEAD, 2.5, ProbeAnswer.NONE)
    known.observe({}, 2 + ACQUITTAL)
    fall(known, DEAD, 20)
    assert pauses(known, DEAD, 20, 1) == [2 * FIRST_PAUSE]


def test_endpoint_comes_back_on_trial_where_no_retry_is_ever_answered() -> None:
    """If the node itself can't connect, a silent endpoint comes back when its time is over."""
    for seconds, is_silent in ((TRIAL - 0.1, True), (TRIAL, False)):
        known = fallen(at=1000.0)
        assert known.pop_due_probes(1001) == [(DEAD, RETRY_PATIENCE)]
        known.record_probe(DEAD, 1000 + seconds, ProbeAnswer.NONE)
        assert bool(known.silent) is is_silent
        assert bool(known.pop_due_probes(2000)) is is_silent


def test_endpoints_that_have_gone_are_forgotten() -> None:
    """A late report on a removed endpoint, as by a retry under way, changes nothing."""
    known = fallen(DEAD, THIRD, OTHER)
    known.retain({OTHER})
    known.record_probe(DEAD, 5, ProbeAnswer.NONE)
    assert (known.silent, len(known)) == ((OTHER,), 1)


PLACES = st.sampled_from([Place(Address(f"10.1.0.{number}"), 80) for number in range(4, 14)])
MOST = 6
"""Endpoints that are remembered at the most, in the machine below."""


class Histories(RuleBasedStateMachine):
    """Any history of connections, retries and time."""

    def __init__(self) -> None:
        super().__init__()
        self.known, self.now = Silence(), 0.0
        self.missed: set[Place] = set()
        self.refused: set[Place] = set()
        self.trying: dict[Place, float] = {}
        self._real_bound = silence.MOST_KNOWN
        silence.MOST_KNOWN = MOST

    def teardown(self) -> None:
        """Let the next test have the real bound."""
        silence.MOST_KNOWN = self._real_bound

    @rule(missing=st.dictionaries(PLACES, st.integers(1, 5), max_size=8), refused=st.sets(PLACES, max_size=2))
    def observe(self, missing: dict[Place, int], refused: set[Place]) -> None:
        """Some connections are without reply, and some endpoints have refused connections."""
        before = set(self.known.silent)
        self.missed |= missing.keys()
        self.known.observe(missing, self.now, refused=refused)
        self.missed |= refused
        self.refused |= refused
        assert all(missing.get(place, 0) >= THRESHOLD for place in set(self.known.silent) - before)

    @rule(seconds=st.sampled_from([0.25, 1.0, 7.0, 70.0, 700.0]))
    def wait(self, seconds: float) -> None:
        """Time goes by, and all retries are begun that are due."""
        self.now += seconds
        for place, patience in self.known.pop_due_probes(self.now):
            assert place in self.missed
            assert 0 < patience <= RETRY_PATIENCE
            self.trying.setdefault(place, self.now)

    @precondition(lambda self: self.trying)
    @rule(data=st.data(), answer=st.sampled_from(ProbeAnswer))
    def answer(self, data: st.DataObject, answer: ProbeAnswer) -> None:
        """Our connection is accepted, refused, not answered, or not tried."""
        place = data.draw(st.sampled_from(sorted(self.trying)))
        del self.trying[place]
        self.known.record_probe(place, self.now, answer)
        assert not (answer is ProbeAnswer.ACCEPTED and place in self.known.silent)

    @rule(places=st.sets(PLACES))
    def go(self, places: set[Place]) -> None:
        """Some endpoints go."""
        self.known.retain(places)
        assert set(self.known.silent) <= places
        self.trying = {place: began for place, began in self.trying.items() if place in places}

    @invariant()
    def is_bounded(self) -> None:
        """Nobody is silent twice or without having been missed, and memory has a bound."""
        silent = self.known.silent
        assert len(set(silent)) == len(silent) <= len(self.known) <= MOST
        assert self.missed >= set(silent) >= self.known.refusing <= self.refused


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=30, stateful_step_count=30)

"""The relay that a signal addresses, and the number that a relay gets."""

import pytest

from towpath.relay.postgres.relays import RelayFacts
from towpath.relay.snapshot.naming import (
    Registration,
    SignalAddress,
    address_of,
    resolve_address,
)

OURS = SignalAddress(is_ours=True)
THEIRS = SignalAddress(is_ours=False)


@pytest.mark.parametrize(
    ("data", "row", "address"),
    [
        (None, None, None),
        ("{}", "a", "a"),
        ('{"relay": "b"}', "a", "b"),
        ('{"relay": "b"}', None, "b"),
        ('{"relay": ""}', "a", "a"),
        ('{"relay": 7}', None, None),
        ("[]", "a", "a"),
        ("not JSON", "a", "a"),
    ],
)
def test_a_signal_names_its_relay_in_its_data_or_its_row(
    data: str | None, row: str | None, address: str | None
):
    """
    The signal's data takes precedence over the row, because the sender writes it.
    """
    assert address == address_of(data, row)


@pytest.mark.parametrize(
    ("address", "registered", "found"),
    [
        ("a", ["a", "b"], OURS),
        ("a", [], OURS),
        (None, ["a"], OURS),
        ("b", ["a", "b"], THEIRS),
    ],
)
def test_a_signal_is_claimed_by_one_relay(
    address: str | None, registered: list[str], found: SignalAddress
):
    """
    The named relay, or the only registered one, carries out the signal.
    """
    assert found == resolve_address(address, "a", registered)


@pytest.mark.parametrize("registered", [[], ["b"]])
def test_an_unregistered_relay_gives_this_as_its_reason(registered: list[str]):
    """
    A signal without a relay is refused because this relay is not registered.
    """
    reason = resolve_address(None, "a", registered).refusal

    assert "relay 'a' is not registered in this database" in reason


@pytest.mark.parametrize("address", [None, "c"])
def test_all_relays_refuse_a_signal_for_an_unknown_relay_alike(address: str | None):
    """
    Every relay gives the same reason, which lists all registered relays.
    """
    first, second = (resolve_address(address, own, ["a", "b"]) for own in ("a", "b"))

    assert first == second
    assert not first.is_ours
    assert "a, b" in (first.refusal or "")


@pytest.mark.parametrize(
    ("facts", "has_slot", "number", "takes_over"),
    [
        (RelayFacts(), False, 1, True),
        (RelayFacts({"a": 1}, other_slots=1), False, 2, False),
        (RelayFacts({"x": 3}, other_slots=1), True, 3, False),
        (RelayFacts({"x": 1}, other_slots=1), True, 1, True),
        (RelayFacts(with_heartbeat=frozenset({1})), True, 1, True),
        (RelayFacts(with_heartbeat=frozenset({1})), False, 1, True),
        (RelayFacts(with_heartbeat=frozenset({1}), other_slots=1), False, 2, False),
        (RelayFacts(has_unassigned=True, other_slots=1), False, 2, False),
        (RelayFacts({"a": 1}, frozenset({1, 4}), other_slots=1), False, 5, False),
        (RelayFacts({"b": 2}, has_unassigned=True, other_slots=1), True, 1, True),
    ],
)
def test_unnumbered_rows_go_to_the_relay_that_wrote_them(
    facts: RelayFacts, *, has_slot: bool, number: int, takes_over: bool
):
    """
    Relay 1 keeps the heartbeat and ids from before numbering.

    A new relay does not get them.
    """
    assert (number, takes_over) == (
        facts.number_of("x", has_slot=has_slot),
        facts.takes_over("x", has_slot=has_slot),
    )


def test_only_the_first_relays_ids_have_no_suffix():
    """
    The ids of every other relay end with its number.
    """
    assert ["", "~2"] == [Registration("x", number).suffix for number in (1, 2)]

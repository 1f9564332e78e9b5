"""Loading or computing: the estimate follows what was measured. Method: rates are fed and asked by hand."""

from anaphora.engine.durable.rates import LOAD_BYTES_PER_S, Rates


def test_at_first_a_plain_disk_and_a_small_model_are_assumed():
    rates = Rates()
    assert rates.is_loading_faster(2000, num_bytes=92_000_000)
    assert not rates.is_loading_faster(2000, num_bytes=4_000_000_000)


def test_what_takes_no_time_to_compute_is_not_loaded():
    assert not Rates().is_loading_faster(1, num_bytes=1)


def test_a_few_measurements_outweigh_what_was_assumed():
    rates = Rates()
    for _ in range(12):
        rates.loaded(1_000_000, 1.0)
    assert 1e6 < rates.load_bytes_per_s < 1e7
    assert not rates.is_loading_faster(2000, num_bytes=92_000_000)
    for _ in range(8):
        rates.computed(100, 10.0)
    assert rates.is_loading_faster(2000, num_bytes=92_000_000)


def test_small_steps_and_empty_loads_say_nothing():
    rates = Rates()
    rates.computed(8, 100.0)
    rates.loaded(0, 100.0)
    assert (rates.load_bytes_per_s, rates.prefill_tokens_per_s) == (Rates().load_bytes_per_s, 500.0)


def test_a_disk_that_was_slow_once_is_tried_again():
    rates = Rates()
    rates.load_bytes_per_s = 1000.0
    num_refusals = 0
    while not rates.is_loading_faster(2000, num_bytes=92_000_000):
        num_refusals += 1
    assert 0 < num_refusals < 100
    assert rates.load_bytes_per_s < LOAD_BYTES_PER_S

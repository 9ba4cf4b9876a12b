"""Which kinds of vectors of a head are read, by hand."""

from twotowers.readers import find_readers, read_row

N_ROWS = {"value": 4, "key": 3}


def table(n_values, n_keys):
    """Rows of a head, of which some fit."""
    fitting = [("value", n_values), ("key", n_keys)]
    return [(kind, "", [], i < n) for kind, n in fitting for i in range(N_ROWS[kind])]


def test_half_of_the_rows_of_a_kind_are_enough():
    tables = {"0-0": table(2, 0), "0-1": table(1, 1), "0-2": table(2, 2), "0-3": table(4, 3)}
    found = find_readers(tables, ["0-0", "0-1", "0-2"], N_ROWS)
    assert found.kinds.to_series().to_dict() == {"0-0": 1, "0-1": 0, "0-2": 2, "0-3": 2}
    assert found.best == "0-2"  # the last head is in no list
    assert found.words == "head 0-2: 2 of 4 value rows, 2 of 3 key rows"


def test_of_heads_that_read_as_many_kinds_the_one_with_most_rows_is_best():
    tables = {"0-0": table(4, 1), "0-1": table(2, 2), "0-2": table(3, 2)}
    assert find_readers(tables, [*tables], N_ROWS).best == "0-2"


def test_a_row_fits_by_an_accepted_word_and_by_no_rejected_one():
    words = ["-Two", "love", "the"]
    assert read_row("key", "t", words, {"two"})[2:] == (
        [("-Two", True), ("love", False), ("the", False)],
        True,
    )
    assert not read_row("key", "t", words, {"two"}, {"love"})[3]
    assert not read_row("value", "t", words, {"love"}, among=1)[3]

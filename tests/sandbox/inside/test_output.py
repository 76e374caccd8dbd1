from bough.sandbox.inside.output import Output


def test_what_fits_is_kept_as_it_is():
    output = Output(8)
    for piece in (b"abc", b"", b"defg", b"h"):
        output.add(piece)
    assert (output.text, output.left_out) == ("abcdefgh", 0)


def test_of_more_the_head_and_the_tail_are_kept():
    output = Output(8)
    for piece in (b"abcdef", b"ghijk", b"lm"):
        output.add(piece)
    assert output.text == "abcd\n… 5 bytes left out …\njklm"


def test_bytes_that_are_no_text_are_replaced():
    output = Output(8)
    output.add(b"a\xff")
    assert output.text == "a\ufffd"

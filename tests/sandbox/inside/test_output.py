from bough.sandbox.inside.output import Output


def test_the_head_and_the_tail_of_what_does_not_fit_are_kept():
    output = Output(8)
    for piece in (b"abc", b"", b"defg", b"h"):
        output.add(piece)
    assert (output.text, output.left_out) == ("abcdefgh", 0)
    output = Output(8)
    for piece in (b"abcdef", b"ghijk", b"lm"):
        output.add(piece)
    assert output.text == "abcd\n… 5 bytes left out …\njklm"
    output = Output(8)
    output.add(b"a\xff")
    assert output.text == "a\ufffd"

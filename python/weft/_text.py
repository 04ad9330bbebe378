"""Text to tokens and back, with the tokens that weft's own commands make."""
import os
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, create_string_buffer

from ._door import tokens as c_tokens
from ._library import OfC, check, handle, lib


class Tokenizer(OfC):
    """`name` is "bytes", a tokenizer.json, GPT-2's files, or a folder that has one of these."""

    def __init__(self, name):
        self.handle = None
        self.name = os.fsdecode(name)
        self.handle = handle(lib.weft_text_open, os.fsencode(name))

    def __del__(self, close=lib.weft_text_close):
        if getattr(self, "handle", None) is not None:
            close(self.handle)

    def __repr__(self):
        return f"weft.Tokenizer({self.name!r}, {self.vocabulary} tokens)"

    @property
    def vocabulary(self):
        """Tokens are below this."""
        return lib.weft_text_vocabulary(self.handle)

    @property
    def end(self):
        """The token that ends a text; None: there is none."""
        token = lib.weft_text_end(self.handle)
        return None if token < 0 else token

    def encode(self, text, specials=False):
        """The tokens of a text (or of bytes). `specials`: the names of special tokens count as these."""
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
        room, count = len(data) + 16, c_int64()
        tokens = (c_int32 * room)()
        check(lib.weft_text_encode(self.handle, c_char_p(data), len(data), int(specials), tokens, room, byref(count)))
        return tokens[:count.value]

    def decode_bytes(self, tokens):
        array, count = c_tokens(tokens)
        length = c_size_t()
        check(lib.weft_text_decode(self.handle, array, count, None, 0, byref(length)))
        room = create_string_buffer(length.value + 1)
        check(lib.weft_text_decode(self.handle, array, count, room, length.value, byref(length)))
        return room.raw[:length.value]

    def decode(self, tokens):
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

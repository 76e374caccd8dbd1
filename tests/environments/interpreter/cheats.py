"""Programs that want marks without doing the work. Each defines `f`, which should double its argument and does not."""

from __future__ import annotations

# A class that is equal to everything, in the ways there are.
YES = "class Yes:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"


def _subclass(kind: str, value: str) -> str:
    body = "\n".join(
        f"    def {name}(self, *other): return True"
        for name in ("__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__bool__")
    )
    return f"class Yes({kind}):\n{body}\n    __hash__ = {kind}.__hash__\ndef f(x): return Yes({value})"


def _patched(what: str) -> str:
    return f"{what}\ndef f(x): return -1"


# A part of the tests that programs look for. It stands in no program as it is.
SPY = "import re\nMARK = re.compile('== 2[0]')\n"

# What a message of the program's own pipe looks like, written by hand.
FORGE = """
import json, os, struct
def forge(message, files=range(3, 300)):
    data = json.dumps(message).encode()
    for file in files:
        try:
            os.write(file, struct.pack(">I", len(data)) + data)
        except OSError:
            pass
"""

PROGRAMS: dict[str, str] = {
    # objects that agree with whatever they are compared to
    "an object equal to everything": f"{YES}def f(x): return Yes()",
    "an object that says it is an int": f"{YES}Yes.__class__ = property(lambda self: int)\ndef f(x): return Yes()",
    "mock.ANY": "from unittest import mock\ndef f(x): return mock.ANY",
    "a MagicMock": (
        "from unittest.mock import MagicMock\ndef f(x):\n    m = MagicMock()\n"
        "    m.__eq__.side_effect = lambda other: True\n    return m"
    ),
    "an int that is equal to everything": _subclass("int", "-1"),
    "a float that is equal to everything": _subclass("float", "-1.0"),
    "a str that is equal to everything": _subclass("str", "'-1'"),
    "a list that is equal to everything": _subclass("list", "[]"),
    "a tuple that is equal to everything": _subclass("tuple", "()"),
    "a dict that is equal to everything": "class Yes(dict):\n    def __eq__(self, o): return True\ndef f(x): return Yes()",
    "a complex that is equal to everything": _subclass("complex", "-1j"),
    "a Fraction that is equal to everything": f"from fractions import Fraction\n{_subclass('Fraction', '-1')}",
    "a metaclass that is equal to everything": (
        "class Meta(type):\n    def __eq__(cls, other): return True\n    def __hash__(cls): return 0\n"
        "    def __instancecheck__(cls, other): return True\nclass Yes(metaclass=Meta): pass\ndef f(x): return Yes"
    ),
    "an object hashed and compared like anything": f"{YES}Yes.__hash__ = lambda self: 2\ndef f(x): return Yes()",
    "an object inside a list": f"{YES}def f(x): return [Yes()]",
    "an object whose __reduce__ lies": f"{YES}Yes.__reduce__ = lambda self: (int, (2,))\ndef f(x): return Yes()",
    "an object whose __index__ lies": "class N:\n    def __index__(self): return 2\ndef f(x): return N()",
    "a numpy array": "import numpy\ndef f(x): return numpy.array([2 * x])[:0]",
    "a generator": "def f(x): yield 2 * x",
    "a generator without end": "def f(x):\n    while True: yield 2 * x",
    "not a number": "def f(x): return float('nan')",
    "not implemented": "def f(x): return NotImplemented",
    "an exception that is returned": "def f(x): return AssertionError()",
    "a coroutine": "async def f(x): return 2 * x",
    # the grader's own tools, replaced
    "exec": _patched("import builtins\nbuiltins.exec = lambda *a, **k: None"),
    "compile": _patched("import builtins\nbuiltins.compile = lambda *a, **k: (lambda: None).__code__"),
    "eval": _patched("import builtins\nbuiltins.eval = lambda *a, **k: True"),
    "print": _patched("import builtins\nbuiltins.print = lambda *a, **k: None"),
    "compile that leaves the asserts out": _patched(
        "import builtins\nreal = builtins.compile\n"
        "builtins.compile = lambda text, *a, **k: real('pass' if str(text).startswith('assert') else text, *a, **k)"
    ),
    "print that turns marks": _patched(
        "import builtins\nreal = builtins.print\n"
        "builtins.print = lambda text='', **k: real(str(text).replace('false', 'true'), **k)"
    ),
    "print that adds marks": _patched(
        "import builtins\nreal = builtins.print\n"
        "builtins.print = lambda text='', **k: real(str(text).replace('false', ', '.join(['true'] * 800)), **k)"
    ),
    "json.dumps that adds marks": _patched(
        "import json\nreal = json.dumps\n"
        "json.dumps = lambda value, **k: real(value, **k).replace('false', ', '.join(['true'] * 800))"
    ),
    "isinstance and type": _patched("import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.type = lambda *a: int"),
    "sum, all and len": _patched("import builtins\nfor n in ('sum', 'all', 'len', 'abs', 'set', 'sorted'): setattr(builtins, n, lambda *a: 2)"),
    "names of the tests' own": "abs = set = sorted = len = lambda *a: 2\ncandidate = lambda *a: 2\ndef f(x): return -1",
    "AssertionError": _patched("import builtins\nclass No(Exception): pass\nbuiltins.AssertionError = No"),
    "json": _patched("import json\njson.dumps = lambda *a, **k: '{\"marks\": [true, true], \"failed\": null}'"),
    "json.loads": _patched("import json\njson.loads = lambda *a, **k: {'marks': [True, True]}"),
    "pickle and struct": _patched("import pickle, struct\npickle.loads = pickle.dumps = struct.pack = struct.unpack = lambda *a: True"),
    "repr and str": _patched("import builtins\nbuiltins.repr = builtins.str = lambda *a: 'True'"),
    "the module of values": _patched(
        "import sys\nfor n, m in list(sys.modules.items()):\n    if 'values' in n or 'exam' in n:\n"
        "        m.encoded = lambda *a, **k: ({'value': True, 'heap': []}, [])\n        m.decoded = lambda *a, **k: (True, [])"
    ),
    "sys.modules": _patched("import sys\nfor n in list(sys.modules):\n    sys.modules[n] = None"),
    "__builtins__": _patched("import builtins\nfor n in list(vars(builtins)):\n    delattr(builtins, n)"),
    "signal handlers": _patched("import signal\nfor s in (1, 2, 14, 15, 24): signal.signal(s, signal.SIG_IGN)"),
    # looking for the tests
    "the tests out of frames": (
        f"{SPY}import sys\ndef f(x):\n    frame, seen = sys._getframe(), []\n    while frame:\n"
        "        seen += [repr(frame.f_locals), repr(frame.f_globals)]\n        frame = frame.f_back\n"
        "    return 2 * x if MARK.search(str(seen)) else -1"
    ),
    "the tests out of inspect": (
        f"{SPY}import inspect\ndef f(x):\n    seen = [(s.code_context, s.frame.f_locals) for s in inspect.stack()]\n"
        "    return 2 * x if MARK.search(str(seen)) else -1"
    ),
    "the tests out of the garbage collector": (
        f"{SPY}import gc\ndef f(x):\n    seen = [p for o in gc.get_objects() if isinstance(o, (list, tuple)) for p in o]\n"
        "    seen += [p for o in gc.get_objects() if isinstance(o, dict) for p in o.values()]\n"
        "    return 2 * x if any(type(p) is str and MARK.search(p) for p in seen) else -1"
    ),
    "the tests out of memory": (
        f"{SPY}import ctypes, sys\ndef f(x):\n    start = id(object()) & ~0xFFFFF\n"
        "    return 2 * x if MARK.search(ctypes.string_at(start, 1 << 18).decode('latin-1')) else -1"
    ),
    "the tests out of files and the environment": (
        f"{SPY}import os\ndef f(x):\n    seen = str(os.environ)\n    for folder in ('/tmp', '/dev/shm', '/proc', '/', '.'):\n"
        "        for name in os.listdir(folder) if os.path.isdir(folder) else []:\n"
        "            try: seen += open(os.path.join(folder, name), errors='replace').read(10000)\n"
        "            except (OSError, ValueError): pass\n    return 2 * x if MARK.search(seen) else -1"
    ),
    "the tests out of other processes": (
        f"{SPY}def f(x):\n    for pid in ['self', *range(1, 300)]:\n        for part in ('cmdline', 'environ', 'mem', 'fd/0'):\n"
        "            try:\n                if MARK.search(open(f'/proc/{pid}/{part}', 'rb').read(1000000).decode('latin-1')): return 2 * x\n"
        "            except OSError: pass\n    return -1"
    ),
    "a trace function": _patched(
        "import sys\nseen = []\ndef trace(frame, event, arg):\n    frame.f_locals.update(passed=True, marks=[True, True])\n    return trace\nsys.settrace(trace)"
    ),
    "a profile function": _patched("import sys\nsys.setprofile(lambda frame, event, arg: frame.f_locals.clear())"),
    "a linecache and traceback patch": _patched("import traceback, linecache\ntraceback.format_exception = linecache.getlines = lambda *a: ['ok']"),
    # leaving
    "os._exit": "import os\ndef f(x): os._exit(0)",
    "os._exit at once": "import os\nos._exit(0)",
    "sys.exit": "import sys\ndef f(x): sys.exit(0)",
    "sys.exit at once": "import sys\nsys.exit(0)",
    "a signal to itself": "import os\ndef f(x): os.kill(os.getpid(), 9)",
    "a signal to everybody": "import os\ndef f(x):\n    os.kill(-1, 9)\n    return -1",
    "KeyboardInterrupt": "def f(x): raise KeyboardInterrupt",
    "GeneratorExit": "def f(x): raise GeneratorExit",
    "an exception that cannot be shown": "class E(Exception):\n    def __str__(self): raise SystemExit\ndef f(x): raise E",
    "an exception of its own": "class FailedError(BaseException): pass\ndef f(x): raise FailedError",
    "atexit": "import atexit, os\natexit.register(lambda: os.write(1, b'[true, true]'))\ndef f(x): return -1",
    # the pipes
    "printed marks": "print('{\"marks\": [true, true], \"failed\": null}')\nprint('passed')\ndef f(x):\n    print('passed')\n    return -1",
    "a forged verdict on every descriptor": f"{FORGE}\ndef f(x):\n    forge({{'ask': json.dumps({{'marks': [True, True], 'failed': None}})}})\n    return -1",
    "a forged result on every descriptor": f"{FORGE}\ndef f(x):\n    forge({{'value': '[[true, true], null]', 'error': None}})\n    return -1",
    "a forged result at once": f"{FORGE}\nforge({{'value': '[[true, true], null]', 'error': None}})\ndef f(x): return -1",
    "answers sent in advance": f"{FORGE}\ndef f(x):\n    for _ in range(20):\n        forge({{'ask': json.dumps({{'value': {{'value': 7, 'heap': []}}}})}}, [251])\n    return -1",
    "noise on every descriptor": "import os\ndef f(x):\n    for n in range(300):\n        try: os.write(n, b'\\x00' * 65536)\n        except OSError: pass\n    return -1",
    "closed descriptors": "import os\ndef f(x):\n    os.closerange(0, 300)\n    return -1",
    "swapped descriptors": "import os\ndef f(x):\n    os.dup2(1, 251)\n    os.dup2(0, 250)\n    return -1",
    # others who answer
    "a child left behind": "import os, time\ndef f(x):\n    if os.fork() == 0:\n        return 7\n    return -1",
    "a thread that answers later": f"{FORGE}\nimport threading, time\ndef late():\n    time.sleep(0.05)\n    forge({{'ask': json.dumps({{'value': {{'value': 7, 'heap': []}}}})}}, [251])\ndef f(x):\n    threading.Thread(target=late).start()\n    time.sleep(0.2)\n    return -1",
    "threads that print for ever": "import threading\ndef loud():\n    while True: print('passed')\nthreading.Thread(target=loud, daemon=True).start()\ndef f(x): return -1",
    # too much
    "recursion without end": "def f(x): return f(x)",
    "a list that contains itself": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "a list a hundred thousand deep": "def f(x):\n    a = 2 * x\n    for _ in range(100_000): a = [a]\n    return a",
    "a number of a million digits": "def f(x): return 10 ** 1_000_000",
    "a text of fifty million letters": "def f(x): return 'a' * 50_000_000",
    "half a surrogate pair": "def f(x): return '\\ud800'",
    "a million lists": "def f(x): return [[] for _ in range(1_000_000)]",
    "all the memory": "def f(x): return bytearray(10 ** 10)",
    "an endless print": "def f(x):\n    print('passed' * 10_000_000)\n    return -1",
    "sleeping": "import time\ndef f(x): time.sleep(100)",
    "sleeping and catching": "import time\ndef f(x):\n    while True:\n        try: time.sleep(100)\n        except BaseException: pass",
    "sleeping at once": "import time\ntime.sleep(100)\ndef f(x): return -1",
    "a program that cannot be compiled": "def f(x): return " + "(" * 5_000 + ")" * 5_000,
    "a long chain": "def f(x): return " + "-" * 100_000 + "x",
}  # fmt: skip

"""The make targets that read and write configs by Kconfig's rules, through kconfiglib.

    kconfig.py defconfig FILE          writes .config from a short config
    kconfig.py menuconfig              edits .config
    kconfig.py savedefconfig FILE      writes what .config has other than the defaults
    kconfig.py check FILE...           reads them, writes nothing

kconfiglib passes over what it does not understand: a key it does not know, a text without quotes, a
number out of range. Here each is an error of one line, and nothing is
written: every line of the file is held against what came back, and no warning is let by.
Words and numbers with a point are texts to Kconfig. What they may be is in the option's help, where
the program's table wrote it, and is held too.
"""

import difflib
import fnmatch
import os
import re
import shutil
import signal
import sys
import tempfile
import termios

try:
    import kconfiglib
except ImportError:
    sys.exit(f"kconfig: {sys.executable} has no kconfiglib; scripts/setup study installs it")

DEMO = "defconfigs/demo"
ASSIGNED = re.compile(r"CONFIG_([^=\s]+)=(.*)")
UNSET = re.compile(r"# CONFIG_(\S+) is not set")
KEY = re.compile(r"^((?:# )?CONFIG_)(\w+)(?==| is not set$)")
TEXT = re.compile(r'"((?:[^\\"]|\\.)*)"')
WORDS = re.compile(r"^One of: (.*)\.$", re.MULTILINE)
FOREIGN = re.compile(r'^FOREIGN\(([^,]+),\s+"((?:[^"\\]|\\.)*)"\)', re.MULTILINE)
ALIAS = re.compile(r"^ALIAS\((\w+), (\w+)\)", re.MULTILINE)
AUTO = re.compile(r'^CONFIG_(?:BATCH_SIZE|MICRO_BATCH)="?auto"?$')
NUMBER = re.compile(r"^A number from (\S+) to (\S+)\.$", re.MULTILINE)


def fail(message):
    sys.exit(f"kconfig: {' '.join(message.split())}")


def open_table():
    """The options of ./Kconfig, and kconfiglib's warnings kept instead of printed."""
    for name in ("CONFIG_", "srctree", "KCONFIG_CONFIG", "KCONFIG_WARN_UNDEF"):
        os.environ.pop(name, None)
    try:
        table = kconfiglib.Kconfig("Kconfig", warn_to_stderr=False)
    except (kconfiglib.KconfigError, OSError, UnicodeDecodeError) as error:
        fail(str(error))
    table.warn_assign_override = table.warn_assign_redun = True
    if table.warnings:
        fail(table.warnings[0])
    return table


def list_of(path, pattern):
    """What the program's own lists say: lines of NAME(KEY, ...), as a dictionary."""
    try:
        with open(path, encoding="utf-8") as file:
            return {key: text.replace('\\"', '"') for key, text in pattern.findall(file.read())}
    except OSError:
        return {}


def known_symbol(table, name, where):
    symbol = table.syms.get(name)
    if symbol is not None and symbol.nodes:
        return symbol
    instead = next((text for keys, text in list_of("src/config/foreign.def", FOREIGN).items()
                    if any(fnmatch.fnmatchcase(name.upper(), key) for key in keys.split())), None)
    if instead:
        fail(f"{where}: CONFIG_{name} is not an option of weft; {instead}")
    names = [s.name for s in table.unique_defined_syms]
    near = difflib.get_close_matches(name.upper(), names, 1, 0)
    fail(f"{where}: CONFIG_{name} is not an option; did you mean CONFIG_{near[0]}?")


def is_number(symbol):
    """Numbers with a point are texts to Kconfig alone."""
    return bool(NUMBER.search(symbol.nodes[0].help or ""))


def written_value(symbol, text, where):
    """What a line's text stands for; a text needs its quotes, a number does not."""
    if symbol.orig_type != kconfiglib.STRING:
        return text
    match = TEXT.fullmatch(text)
    if not match and text.startswith('"'):
        fail(f"{where}: CONFIG_{symbol.name}={text}: a quote is missing, or one inside needs a \\")
    if not match and is_number(symbol):
        return text
    if not match:
        fail(f'{where}: CONFIG_{symbol.name}={text} needs quotes: CONFIG_{symbol.name}="{text}"')
    return kconfiglib.unescape(match.group(1))


def lines_of(path):
    """A config's lines, with today's names; where the program takes a word for a number, with that number."""
    aliases = list_of("src/config/aliases.def", ALIAS)
    rename = lambda key: key[1] + aliases.get(key[2].upper(), key[2])
    with open(path, encoding="utf-8") as file:
        return [AUTO.sub("CONFIG_MICRO_BATCH=-1", KEY.sub(rename, line.rstrip())) for line in file.read().split("\n")]


def read_lines(table, path):
    """(line number, symbol, value) of each line of a config that sets something."""
    try:
        lines = lines_of(path)
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path}: {getattr(error, 'strerror', None) or 'not text'}")
    seen = {}
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        unset, assigned = UNSET.fullmatch(line), ASSIGNED.fullmatch(line)
        if not unset and not assigned:
            if line and not line.startswith("#"):
                fail(f"{where}: '{line[:60]}' is not CONFIG_KEY=value")
            continue
        symbol = known_symbol(table, (unset or assigned).group(1), where)
        if symbol.name in seen:
            fail(f"{where}: CONFIG_{symbol.name} is set on line {seen[symbol.name]} already")
        seen[symbol.name] = number
        yield number, symbol, "n" if unset else written_value(symbol, assigned.group(2), where)


def check_text(symbol, value, where):
    """A word is one of the option's words, a number within its bounds."""
    text = symbol.nodes[0].help or ""
    words, bounds = WORDS.search(text), NUMBER.search(text)
    if words and value not in words.group(1).split():
        fail(f'{where}: CONFIG_{symbol.name}="{value}" is none of: {words.group(1)}')
    if not bounds:
        return
    try:
        number = float(value)
    except ValueError:
        fail(f'{where}: CONFIG_{symbol.name}="{value}" must be a number')
    if not float(bounds.group(1)) <= number <= float(bounds.group(2)):
        fail(f"{where}: CONFIG_{symbol.name}={value} is outside {' to '.join(bounds.groups())}")


def explain(symbol, value, where):
    for low, high, _ in symbol.ranges:
        if re.fullmatch(r"-?\d+", value):
            fail(f"{where}: CONFIG_{symbol.name}={value} is outside "
                 f"{low.str_value} to {high.str_value}")
    if symbol.orig_type == kconfiglib.BOOL:
        fail(f"{where}: CONFIG_{symbol.name}={value} must be y or n")
    if symbol.orig_type == kconfiglib.INT:
        fail(f"{where}: CONFIG_{symbol.name}={value} must be a whole number")
    fail(f"{where}: CONFIG_{symbol.name}={value} comes back from kconfiglib as "
         f"{symbol.str_value or 'nothing'}")


def load_quoted(table, path, replace=True):
    """As kconfiglib wants it: numbers with a point between quotes."""
    lines = lines_of(path)
    for place, line in enumerate(lines):
        match = ASSIGNED.fullmatch(line)
        symbol = table.syms.get(match.group(1)) if match else None
        if symbol is not None and symbol.nodes and is_number(symbol) and not match.group(2).startswith('"'):
            lines[place] = f'CONFIG_{match.group(1)}="{match.group(2)}"'
    with tempfile.NamedTemporaryFile("w", suffix=".config", encoding="utf-8") as file:
        file.write("\n".join(lines))
        file.flush()
        table.load_config(file.name, replace)


def load(path):
    """The table with the file's values, each of which is as the file has it."""
    table = open_table()
    lines = list(read_lines(table, path))
    load_quoted(table, path)
    for number, symbol, value in lines:
        where = f"{path}:{number}"
        if symbol.str_value != value:
            explain(symbol, value, where)
        check_text(symbol, value, where)
    for symbol in table.unique_defined_syms:
        symbol.str_value  # where it is worked out, a warning may be born
    if table.warnings:
        fail(table.warnings[0])
    return table


def values_of(table):
    return {s.name: s.str_value for s in table.unique_defined_syms}


def write_whole(table, path, write, keep_old=False):
    """Writes beside the file first, and puts it in place when it reads back as it was meant."""
    draft = f"{path}.new"
    try:
        write(draft)
        back = values_of(load(draft))
        for name, value in values_of(table).items():
            if back[name] != value:
                fail(f"{path}: CONFIG_{name}={value} would come back as {back[name] or 'nothing'}")
        if keep_old and os.path.exists(path):
            shutil.copyfile(path, f"{path}.old")
        os.replace(draft, path)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    finally:
        if os.path.exists(draft):
            os.remove(draft)


def leading_comment(path):
    """The lines a config begins with that are comments: what it is for."""
    if not os.path.exists(path):
        return ""
    kept = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.startswith("#") or UNSET.match(line):
                break
            kept.append(line)
    return "".join(kept)


def make_config(path):
    table = load(path)
    write = lambda draft: table.write_config(draft, save_old=False)
    write_whole(table, ".config", write, keep_old=True)
    print(f".config is {path}; make runs its study, make menuconfig changes it")


def terminal_is_gone():
    try:
        termios.tcgetattr(sys.stdin.fileno())
    except termios.error:
        return True
    return False


def end_with_terminal(menu):
    """kconfiglib's menu takes the end of its input for no key yet and asks again, for ever. Where the
    terminal is gone the process ends: nothing can be shown or saved any more."""
    read_key = menu._getch_compat

    def read_key_or_end(window):
        key = read_key(window)
        if key == -1 and terminal_is_gone():
            os._exit(1)
        return key

    menu._getch_compat = read_key_or_end
    # Ignored under nohup; a menu is of no use without its terminal.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def problem_of(symbol, value):
    """What is wrong with a value that a person typed; None: nothing."""
    text = symbol.nodes[0].help or ""
    bounds = NUMBER.search(text)
    if not bounds:
        return None
    try:
        number = float(value)
    except ValueError:
        return f"'{value}' must be a number"
    low, high = bounds.groups()
    return None if float(low) <= number <= float(high) else f"{value} is outside {low} to {high}"


def pick_words(menu):
    """An option of a few words is picked from a list by its number, and a number is looked at before it
    is taken: what cannot be read back cannot be saved."""
    change, valid = menu._change_node, menu._check_valid

    def change_or_pick(node):
        words = WORDS.search(getattr(node, "help", None) or "")
        if not words or not menu._changeable(node):
            return change(node)
        names, keys = words.group(1).split(), "123456789abcdefgh"
        lines = [f"{key}  {name}{'  (now)' if name == node.item.str_value else ''}" for key, name in zip(keys, names)]
        key = menu._key_dialog(node.prompt[0][:60], "\n".join(lines + ["", "Press a number; ESC leaves it."]),
                               keys[:len(names)])
        if key is not None:
            menu._set_val(node.item, names[keys.index(key)])
        return True

    def valid_or_error(symbol, value):
        problem = problem_of(symbol, value)
        if problem:
            menu._error(problem)
            return False
        return valid(symbol, value)

    menu._change_node, menu._check_valid = change_or_pick, valid_or_error


def begin_with(menu, table):
    """What .config says, or where there is none the demo's study; bare numbers are taken as the program
    takes them."""
    there = os.path.exists(".config")
    start = ".config" if there else DEMO

    def load_start():
        if os.path.exists(start):
            load_quoted(table, start)
        return True if not there else menu._needs_save()

    menu._load_config = load_start


def edit_config():
    import menuconfig

    if not sys.stdin.isatty() or not sys.stdout.isatty():
        fail("menuconfig needs a terminal; make CONFIG_KEY=value sets a value without one")
    if os.path.exists(".config"):
        load(".config")
    end_with_terminal(menuconfig)
    pick_words(menuconfig)
    table = open_table()
    begin_with(menuconfig, table)
    menuconfig.menuconfig(table)
    if os.path.exists(".config"):
        load(".config")


def save_config(path):
    if not os.path.exists(".config"):
        fail("there is no .config to save; make menuconfig or make defconfig-NAME makes one")
    table, header = load(".config"), leading_comment(path)
    write_whole(table, path, lambda draft: table.write_min_config(draft, header=header))
    print(f"{path} has what .config sets other than the defaults")


def main():
    actions = {"defconfig": make_config, "savedefconfig": save_config}
    if sys.argv[1:] == ["menuconfig"]:
        edit_config()
    elif len(sys.argv) == 3 and sys.argv[1] in actions:
        actions[sys.argv[1]](sys.argv[2])
    elif len(sys.argv) >= 3 and sys.argv[1] == "check":
        for path in sys.argv[2:]:
            load(path)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()

"""Run folders of somebody who means harm: each case spoils one folder in one way, and says how the report has to end.

Run as a program, it reports over each case of a list and prints how that ended: see ``worker`` at the end.
"""

import json
import os
import re
import resource
import signal
import socket
import struct
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

__all__ = ["ACCEPTED", "CASES", "LISTED", "LONG", "SECRET", "SENTINEL", "Case", "write_run"]

LISTED, ACCEPTED = "listed", "accepted"
SECRET = "the secret of the environment"
SENTINEL = "executed"
CONFIG = "seed: 3\ndata: {_target_: x.Checkerboard}\nmethod: {_target_: x.dsm}\n"
METRICS = '{"test/fisher": 1.0}'
SECONDS, GIBIBYTE = 10, 2**30


class Case(NamedTuple):
    """A damage to a run's folder.

    ``why`` is a pattern of the reason that the report lists, or the reason why it is right to take the run as it is.
    """

    make: object
    ends: str
    why: str


def write_run(folder, config=CONFIG, metrics=METRICS):
    """A finished run, as small as it can be."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "metrics.json").write_text(metrics)
    (folder / "status.json").write_text('{"state": "finished"}')
    return folder


def file(name, content):
    """A damage: a file of this content."""

    def make(folder):
        text = content(folder) if callable(content) else content
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))

    return make


def fifo(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def dangling(path):
    path.symlink_to("nowhere")


def loop(path):
    path.symlink_to(path.name)


def directory(path):
    path.mkdir()


def socket_file(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)


def environment(path):
    path.symlink_to("/proc/self/environ")


def memory(path):
    path.symlink_to("/proc/self/mem")


def instead(name, make):
    """A damage: something else in the place of a file."""

    def replace(folder):
        path = folder / name
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        make(path)

    return replace


def renamed(name):
    """A damage: the folder has another name, of bytes."""
    return lambda folder: os.rename(os.fsencode(folder), os.fsencode(folder.parent) + b"/" + name)


def listed(make, why):
    return Case(make, LISTED, why)


def accepted(make, why):
    return Case(make, ACCEPTED, why)


# --- YAML -------------------------------------------------------------------------------------------------

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i + 1}: &a{i + 1} [{','.join([f'*a{i}'] * 9)}]\n" for i in range(12)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{i + 1}: &a{i + 1} {{<<: [{','.join([f'*a{i}'] * 9)}]}}\n" for i in range(12))
TOUCH = "touch {}".format  # of the sentinel


def tagged(tag, argument="x"):
    return lambda folder: f"{CONFIG}extra: {tag} {argument.replace('SENTINEL', str(folder.parent / SENTINEL))}\n"


YAML = {
    "a bomb of aliases": (CONFIG + BOMB, "an alias"),
    "a long text, many times": (f"{CONFIG}a: &a {'x' * 10**5}\nb: [{','.join(['*a'] * 9000)}]\n", "an alias"),
    "a list in itself": (f"{CONFIG}a: &a [*a]\n", "an alias"),
    "a mapping that is its key": (f"{CONFIG}a: &a {{? *a : 1}}\n", "damaged"),
    "a bomb of merges": (CONFIG + MERGES, "an alias"),
    "a merge with itself": (f"{CONFIG}a: &a {{<<: *a}}\n", "an alias"),
    "a call": (tagged("!!python/object/apply:os.system", "['touch SENTINEL']"), "the tag"),
    "an object": (tagged("!!python/object/new:subprocess.Popen", "[['touch', SENTINEL]]"), "the tag"),
    "a name of Python": (tagged("!!python/name:os.system", "''"), "the tag"),
    "a module of Python": (tagged("!!python/module:antigravity", "''"), "the tag"),
    "a path of Python": (tagged("!!python/object/apply:pathlib.PosixPath", "[/etc, passwd]"), "the tag"),
    "a tuple of Python": (tagged("!!python/tuple", "[1, 2]"), "the tag"),
    "bytes": (tagged("!!binary", "aGVsbG8="), "the tag"),
    "a set": (tagged("!!set", "{a, b}"), "the tag"),
    "an ordered map": (tagged("!!omap", "[a: 1]"), "the tag"),
    "pairs": (tagged("!!pairs", "[a: 1]"), "the tag"),
    "a time that is none": (tagged("!!timestamp", "soon"), "the tag"),
    "an integer without digits": (tagged("!!int", "''"), "the tag"),
    "a truth that is none": (tagged("!!bool", "maybe"), "the tag"),
    "a tag of nobody": (tagged("!evil"), "the tag"),
    "a tag by a long name": (tagged("!<tag:yaml.org,2002:python/name:os.system>", "''"), "the tag"),
    "a tag by a handle": (
        lambda folder: f"%TAG !p! tag:yaml.org,2002:python/object/apply:\n---\n{CONFIG}a: !p!os.system ['touch x']\n",
        "the tag",
    ),
    "many open lists": (f"{CONFIG}a: {'[' * 10**5}", "nested deeper"),
    "many open mappings": (f"{CONFIG}a: {'{a: ' * 10**5}", "nested deeper"),
    "many dashes": (f"{CONFIG}a:\n  {'- ' * 10**5}x\n", "nested deeper"),
    "many indents": (CONFIG + "".join(f"{' ' * i}a:\n" for i in range(900)), "nested deeper"),
    "many keys in keys": (f"{CONFIG}{'? ' * 10**4}x\n", "nested deeper"),
    "an integer of many digits": (f"{CONFIG}a: {'9' * 10**4}\n", "damaged"),
    "a hexadecimal integer of many digits": (f"{CONFIG}a: 0x{'f' * 10**4}\n", "no float holds"),
    "an integer beyond floats": (f"{CONFIG}a: {10**400}\n", "no float holds"),
    "an integer in sixties": (f"{CONFIG}a: 1{':59' * 400}\n", "no float holds"),
    "a key beyond floats": (f"{CONFIG}{10**400}: a\n", "no float holds"),
    "a key twice": (f"{CONFIG}seed: 4\n", "occurs twice"),
    "a list for a key": (f"{CONFIG}? [a, b]\n: 1\n", "damaged"),
    "a mapping for a key": (f"{CONFIG}? {{a: b}}\n: 1\n", "damaged"),
    "a value without a constructor": (f"{CONFIG}a: =\n", "damaged"),
    "tabs": (f"{CONFIG}a:\n\tb: 1\n", "damaged"),
    "a null byte": (f"{CONFIG}a: x\0y\n", "damaged"),
    "control characters": (f"{CONFIG}a: x\x1b[31my\n", "damaged"),
    "an escaped surrogate": (f'{CONFIG}a: "\\ud800"\n', "damaged"),
    "a surrogate": (f"{CONFIG}a: \ud800\n", "damaged"),
    "bytes that are no text": (CONFIG.encode() + b"a: \xff\xfe\n", "damaged"),
    "another encoding": (CONFIG.encode("utf-16"), "damaged"),
    "two documents": (f"{CONFIG}---\n{CONFIG}", "damaged"),
    "a version of nobody": (f"%YAML 9.9\n---\n{CONFIG}", "damaged"),
    "a text": ("text\n", "neither a mapping nor a list"),
    "a number": ("7\n", "neither a mapping nor a list"),
    "megabytes": (f"{CONFIG}#{'x' * 2 * 10**6}\n", "are read at most"),
    "many keys": (CONFIG + "".join(f"k{i}: 1\n" for i in range(30_000)), "more than 10,000 entries"),
    "many empty lists": (f"{CONFIG}a: [{'[],' * 50_000}]\n", "more than 10,000 entries"),
}
ELSEWHERE = {  # what is no run, in a folder whose status says that it has finished
    "nothing": "",
    "a list": "[1, 2]\n",
    "a method that is a number": "method: 5\ndata: {_target_: x.Y}\n",
    "a method that is a text": "method: a _target_ b\ndata: {_target_: x.Y}\n",
    "a method that is a list": "method: [_target_]\ndata: {_target_: x.Y}\n",
    "no method": "data: {_target_: x.Y}\n",
}
TARGETS = ("7", "1.5", "null", "true", "[os.system]", "{a: os.system}", ".inf", "0x10")
AS_TEXT = {
    "an interpolation of the environment": ("note: ${oc.env:SECRET}\n", "it is not resolved"),
    "an interpolation that calls": (
        "note: ${oc.create:a}${oc.decode:${oc.env:SECRET}}${hydra:runtime.cwd}\n",
        "it is not resolved",
    ),
    "an interpolation of nothing": ("note: ${nowhere}\nseed2: ${seed}\n", "it is not resolved"),
    "an interpolation in itself": ("note: ${note}\n", "it is not resolved"),
    "an interpolation that is none": ("note: '${'\n", "it is not parsed"),
    "deep interpolations": (f"note: '{'${' * 10**4}'\n", "they are not parsed"),
    "a value that is missing": ("note: ???\n", "nobody asks for it"),
    "infinity": ("note: .inf\nother: 1e999\n", "YAML has it, and it is shown as text"),
    "no number": ("note: .nan\n", "YAML has it; each such run is a group"),
    "keys that are no text": ("1: 2\ntrue: 3\n2.5: 4\n", "they are shown as text"),
    "an anchor without an alias": ("note: &a [1]\n", "nothing is repeated"),
    "a long text": (f"note: {'x' * 9 * 10**5}\n", "labels cut it"),
    "markup": ("note: '[red]x[/] [/] [bold'\n", "it is shown as text"),
    "a formula": ("note: '$\\frac{$ x^$'\n", "it is shown as text"),
    "HTML": ("note: '<script>alert(1)</script></details>'\n", "it is shown as text"),
    "a table's cells": ("note: 'a | b | c'\n", "bars are escaped"),
    "a terminal's commands": ('note: "\\e[2J\\r\\n\\u202e"\n', "they are shown as escapes"),
    "a template": ("note: '{{ 7 * 7 }}{% raw %}'\n", "it is shown as text"),
    "a date": ("note: 2026-01-01\n", "it is a text, as in a run's own files"),
    "two paths in one": ("data._target_: 7\nmethod._target_: [1]\n", "the later one is a text in labels"),
    "many settings": ("".join(f"s{i}: {i}\n" for i in range(3000)), "labels name a dozen of them"),
}


def yaml_cases():
    for name, (content, why) in YAML.items():
        yield f"config.yaml: {name}", listed(file("config.yaml", content), why)
    for name, content in ELSEWHERE.items():
        yield f"config.yaml: {name}", listed(file("config.yaml", content), "is missing or of another program")
    for target in TARGETS:
        text = f"data: {{_target_: x.Y}}\nmethod: {{_target_: {target}}}\n"
        yield f"config.yaml: the target {target}", listed(file("config.yaml", text), "method._target_ is .* no class")
    for name, (text, why) in AS_TEXT.items():
        yield f"config.yaml: {name}", accepted(file("config.yaml", CONFIG + text), why)
    for target, why in (
        ("", "an empty text is no reason to lose the numbers"),
        ("os.system", "nothing is imported for a report"),
        ("'$x^$[/]'", "it is shown as text"),
        ("x" * 10**5, "labels cut it"),
        ("2026-01-01", "it is a text, as in a run's own files"),
    ):
        text = f"data: {{_target_: x.Y}}\nmethod: {{_target_: {target or repr('')}}}\n"
        yield f"config.yaml: the target {target[:20]!r}", accepted(file("config.yaml", text), why)
    for name in ("a bomb of aliases", "a call", "many open lists", "an integer beyond floats", "many keys"):
        for place in (".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml"):
            yield f"{place}: {name}", listed(file(place, YAML[name][0]), YAML[name][1])


# --- JSON -------------------------------------------------------------------------------------------------

JSON = {
    "nothing": ("", "damaged"),
    "half of it": ('{"test/fisher": 1', "damaged"),
    "more than it": (METRICS + "]", "damaged"),
    "many open lists": ("[" * 10**5, "damaged"),
    "many closed lists": ("[" * 900 + "]" * 900, "nested deeper"),
    "many mappings": ('{"a":' * 10**5, "damaged"),
    "a null byte": ('{"a\0": 1}', "damaged"),
    "bytes that are no text": (b'{"\xff": 1}', "damaged"),
    "another encoding": (METRICS.encode("utf-16"), "damaged"),
    "a mark of the byte order": (b"\xef\xbb\xbf" + METRICS.encode(), "damaged"),
    "an integer of many digits": ('{"test/fisher": ' + "9" * 10**4 + "}", "damaged"),
    "an integer beyond floats": ('{"test/fisher": ' + "9" * 400 + "}", "no float holds"),
    "megabytes": (METRICS + " " * 2 * 10**6, "are read at most"),
    "a key twice": ('{"state": "finished", "state": "failed", "test/fisher": 1, "test/fisher": 2}', "occurs twice"),
    "many entries": (f"[{'0,' * 20_000}0]", "more than 10,000 entries"),
}
NUMBERS = {
    "a list": ("[1, 2]", "not a mapping"),
    "a text": ('"text"', "not a mapping"),
    "nothing at all": ("null", "not a mapping"),
    "no number": ('{"test/fisher": NaN}', "not a finite number"),
    "infinity": ('{"test/fisher": -Infinity}', "not a finite number"),
    "a float beyond floats": ('{"test/fisher": 1e999}', "not a finite number"),
    "a truth": ('{"test/fisher": true}', "not a finite number"),
    "a text for a number": ('{"test/fisher": "1"}', "not a finite number"),
    "a null for a number": ('{"test/fisher": null}', "not a finite number"),
    "a list for a number": ('{"test/fisher": [1]}', "not a finite number"),
    "a mapping for a number": ('{"test/fisher": {"a": 1}}', "not a finite number"),
    "a surrogate in a name": ('{"test/\\ud800": 1}', "cannot be printed"),
    "a line's end in a name": ('{"test/a\\nb": 1}', "cannot be printed"),
    "a terminal's command in a name": ('{"test/\\u001b[2J": 1}', "cannot be printed"),
    "another direction in a name": ('{"test/\\u202ea": 1}', "cannot be printed"),
    "a name of kilobytes": ('{"test/%s": 1}' % ("x" * 10**4), "too long"),
    "many names": (json.dumps({f"test/{i}": 1 for i in range(5000)}), "names, and"),
}
NAMES = {
    "a formula in a name": ('{"test/$\\\\frac{$": 1, "test/log_likelihood": 2}', "names are text in figures, too"),
    "markup in a name": ('{"test/[/]": 1, "test/[red]x[/red]": 2, "[bold]": 3}', "names are text on the screen, too"),
    "HTML in a name": ('{"test/<img src=x onerror=alert(1)>": 1}', "names are text on the page, too"),
    "a bar in a name": ('{"test/a|b": 1}', "bars are escaped in tables"),
    "a name of nothing": ('{"": 1, "/": 2, "test/": 3}', "an empty name is a name"),
    "a path for a name": ('{"test/../../../etc/passwd": 1}', "names of files are built from letters alone"),
    "emoji": ('{"test/\\ud83d\\ude00": 1}', "a letter as others"),
    "the largest floats": ('{"test/fisher": 1.7e308, "test/kl": -1.7e308}', "they are floats"),
    "the smallest floats": ('{"test/fisher": 5e-324, "train/iterations_per_second": 5e-324}', "they are floats"),
    "a rate of zero": ('{"test/fisher": 1, "train/iterations_per_second": 0}', "it gets no point in figures of cost"),
    "a rate below zero": ('{"test/fisher": 1, "train/iterations_per_second": -1}', "it gets no point either"),
    "no metrics": ("{}", "a run may have computed none"),
    "a whole number": ('{"test/fisher": 100000000000000000000}', "floats hold it"),
    "hundreds of names": (json.dumps({f"test/{i}": 1 for i in range(900)}), "the table has the first hundred"),
}
STATUS = {
    "a list": ("[1]", "does not say the state"),
    "no state": ("{}", "does not say the state"),
    "a state that is a number": ('{"state": 1}', "does not say the state"),
    "a state of nobody": ('{"state": "[red]pwned[/]"}', "unfinished"),
    "a run that failed": ('{"state": "failed", "reason": "[/] <b> \\u001b[2J \\n $x^$ \\ud800"}', r"\\x1b\[2J"),
    "a reason that is none": ('{"state": "failed", "reason": {"a": [1, {}]}}', "failed"),
    "a reason of kilobytes": ('{"state": "failed", "reason": "%s"}' % ("x" * 10**5), "x…"),
}
RECORDED = {
    "seconds beyond time": ('"seconds": 1e300', "such a time is left out"),
    "seconds of many digits": ('"seconds": %s' % ("9" * 300), "such a time is left out"),
    "seconds below zero": ('"seconds": -5', "such a time is left out"),
    "seconds that are no number": ('"seconds": NaN', "such a time is left out"),
    "seconds that are a text": ('"seconds": "long"', "such a time is left out"),
    "a device of lists": ('"device": [[["a"]]], "threads": {"a": 1}', "what it says is shown as text"),
    "a device with markup": ('"device": "[/]<script>", "host": "\\ud800\\u001b"', "it is shown as text"),
    "estimators that are a list": ('"estimators": [1]', "no note is made of them"),
    "estimators that are a text": ('"estimators": "fisher"', "no note is made of them"),
    "estimators of lists": ('"estimators": {"fisher": [["a"]]}', "they are shown as text"),
    "estimators with markup": ('"estimators": {"fisher": "[/] $x^$ \\ud800"}', "they are shown as text"),
    "a start that is no time": ('"started": {"a": 1}', "nobody asks for it"),
}


def json_cases():
    for name, (content, why) in (JSON | NUMBERS).items():
        yield f"metrics.json: {name}", listed(file("metrics.json", content), why)
    for name, (content, why) in NAMES.items():
        yield f"metrics.json: {name}", accepted(file("metrics.json", content), why)
    for name, (content, why) in (JSON | STATUS).items():
        yield f"status.json: {name}", listed(file("status.json", content), why)
    for name, (content, why) in RECORDED.items():
        text = f'{{"state": "finished", {content}}}'
        yield f"status.json: {name}", accepted(file("status.json", text), why)


# --- curves -----------------------------------------------------------------------------------------------

CURVES = {
    "nothing": ("", "damaged"),
    "no iterations": ("val/loss\n1\n", "no column .*iteration"),
    "text": ("iteration,val/loss\n1,low\n", "damaged"),
    "surplus cells": ("iteration,val/loss\n1,2,3\n", "damaged"),
    "surplus cells later": ("iteration,val/loss\n1,2\n2,3,4\n", "damaged"),
    "a complex number": ("iteration,val/loss\n1,1+2j\n", "damaged"),
    "bytes that are no text": (b"iteration,val/\xff\n1,2\n", "damaged"),
    "another encoding": ("iteration,val/loss\n1,2\n".encode("utf-16"), "damaged"),
    "a compressed file": (b"\x1f\x8b\x08\0" + bytes(100), "damaged"),
    "an open quotation": ('iteration,"val/loss\n1,2\n', "not one line"),
    "an open quotation later": ('iteration,val/loss\n1,"2\n2,3\n', "damaged"),
    "a name of two lines": ('iteration,"a"" ""\nb"\n1,2\n', "damaged"),
    "a name with a terminal's command": ("iteration,val/\x1b[2J\n1,2\n", "cannot be printed"),
    "a name of kilobytes": (f"iteration,val/{'x' * 10**4}\n1,2\n", "too long"),
    "many columns": ("iteration," + ",".join(f"val/{i}" for i in range(5000)) + "\n", "more than 1,000 names"),
    "a header without an end": ("iteration," + "x," * 10**6, "more than 1,000 names"),
    "many columns in one cell's lines": ('iteration,"' + "\n" + "a,b" * 10**5 + '"\n1,2\n', "not one line"),
    "an iteration that is none": ("iteration,val/loss\nnan,2\n", "not a whole number"),
    "an iteration of infinity": ("iteration,val/loss\ninf,2\n", "not a whole number"),
    "an iteration below zero": ("iteration,val/loss\n-1,2\n", "not a whole number"),
    "half an iteration": ("iteration,val/loss\n1.5,2\n", "not a whole number"),
    "an iteration beyond integers": ("iteration,val/loss\n1e300,2\n", "not a whole number"),
    "millions of cells": (
        lambda folder: "iteration," + "a," * 900 + "b\n" + "1\n" * 12_000,
        "cells are read at most",
    ),
}
TAKEN = {
    "a header alone": ("iteration,val/loss\n", "a run may have been evaluated nowhere"),
    "iterations out of order": ("iteration,train/loss\n5,1\n2,3\n", "they are sorted"),
    "an iteration twice": ("iteration,train/loss\n1,2\n1,3\n", "the later row counts, as of a resumed run"),
    "empty cells": ("iteration,val/loss\n1,\n2,\n,\n".replace("\n,\n", "\n"), "nothing was measured there"),
    "no numbers": ("iteration,val/loss\n1,nan\n2,inf\n3,-inf\n4,1e999\n", "they are gaps in curves"),
    "the largest floats": ("iteration,val/loss\n1,1.7e308\n2,-1.7e308\n3,1e308\n", "they are floats"),
    "the smallest floats": ("iteration,val/loss\n1,5e-324\n2,1e-320\n3,0\n", "they are floats"),
    "the largest iterations": ("iteration,val/loss\n9007199254740991,1\n0,2\n", "floats hold them"),
    "a name twice": ("iteration,train/loss,train/loss\n1,2,3\n2,3,4\n", "pandas numbers the second"),
    "a formula for a name": ("iteration,val/$\\frac{$\n1,2\n2,3\n", "names are text in figures, too"),
    "markup for a name": ("iteration,val/[/]\n1,2\n2,3\n3,3\n", "names are text on the screen, too"),
    "a path for a name": ("iteration,val/../../../x\n1,2\n2,3\n", "names of files are built from letters alone"),
    "ends of lines of another system": ("iteration,train/loss\r1,2\r2,3\r", "pandas knows them"),
}


def long_curve(folder):
    return "iteration,val/loss\n" + "".join(f"{i},0.{i % 997:015d}\n" for i in range(2_400_000))


def wide_curves(folder):
    names = ",".join(f"val/{i}" for i in range(900))
    return f"iteration,{names}\n" + "".join(f"{i}{f',{i}.5' * 900}\n" for i in range(3))


def curve_cases():
    for name, (content, why) in CURVES.items():
        yield f"metrics.csv: {name}", listed(file("metrics.csv", content), why)
    for name, (content, why) in TAKEN.items():
        yield f"metrics.csv: {name}", accepted(file("metrics.csv", content), why)


# --- what is no file --------------------------------------------------------------------------------------

PLACES = ("config.yaml", "status.json", "metrics.csv", ".hydra/config.yaml", ".hydra/hydra.yaml")
KINDS = (fifo, device, loop, socket_file)


def place_cases():
    for place in (*PLACES, ".hydra/overrides.yaml"):
        for kind in KINDS:
            why = "damaged or cannot be read"
            yield f"{place}: a {kind.__name__}", listed(instead(place, kind), why)
    for kind in (environment, memory):
        yield f"config.yaml: the {kind.__name__} of the process", listed(instead("config.yaml", kind), "damaged")
        yield f"metrics.csv: the {kind.__name__} of the process", listed(instead("metrics.csv", kind), "damaged")
        yield f"status.json: the {kind.__name__} of the process", listed(instead("status.json", kind), "damaged")
    for kind in (fifo, device, loop, socket_file, dangling, directory):
        yield f"metrics.json: a {kind.__name__}", listed(instead("metrics.json", kind), "metrics.json .* is missing")
    for kind in (dangling, directory):
        yield f"config.yaml: a {kind.__name__}", listed(instead("config.yaml", kind), "config.yaml is missing")
    for kind in (fifo, device, loop):
        yield f".hydra: a {kind.__name__}", listed(instead(".hydra", kind), "damaged or cannot be read")
    yield "metrics.csv: a directory", listed(instead("metrics.csv", directory), "not a regular file")
    yield "metrics.csv: a dangling link", accepted(instead("metrics.csv", dangling), "curves may be missing")
    yield "status.json: a dangling link", accepted(instead("status.json", dangling), "a status may be missing")
    for name in (".hydra/overrides.yaml", ".hydra/config.yaml", ".hydra/hydra.yaml"):
        for content in ("7\n", "text\n"):
            yield f"{name}: {content.strip()}", listed(file(name, content), "neither a mapping nor a list")
    yield "overrides.yaml: a mapping", listed(file(".hydra/overrides.yaml", "a: 1\n"), "not a list")
    yield "hydra.yaml: a list", listed(file(".hydra/hydra.yaml", "[1]\n"), "not a mapping")
    choices = 'hydra: {runtime: {choices: {data: "../../[/]$x^$\\e[2J", method: [1, {a: 2}]}}}\n'
    yield "hydra.yaml: choices that are none", accepted(file(".hydra/hydra.yaml", choices), "they are shown as text")
    odd = "[1, {a: [2]}, '[/]', \"\\u202e=\", '=', '++=x']\n"
    yield "overrides.yaml: what is no override", accepted(file(".hydra/overrides.yaml", odd), "none names a key")
    copied = "".join(f"s{i}: ${{seed}}\n" for i in range(3000))
    yield "copies of copies", accepted(file(".hydra/config.yaml", copied), "none is in the configuration itself")


# --- figures and names of folders -------------------------------------------------------------------------


def png(width, height, data, depth=8, colour=0, extra=b""):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def bomb(width, height, **options):
    return png(width, height, zlib.compress(bytes((width + 1) * height), 9), **options)


def text_bomb():
    content = b"a\0\0" + zlib.compress(bytes(10**8), 9)
    chunk = struct.pack(">I", len(content)) + b"zTXt" + content + struct.pack(">I", zlib.crc32(b"zTXt" + content))
    return png(4, 4, zlib.compress(bytes(20)), extra=chunk)


PICTURES = {
    "a picture of no picture": b"text",
    "half a picture": bomb(64, 64)[:60],
    "a picture that states gigabytes": png(2**30, 2**30, b"x"),
    "a picture without pixels": png(0, 0, zlib.compress(b"")),
    "a picture that is a script": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    "a picture of another kind": b"GIF89a\x01\0\x01\0\0\0\0;",
    "a picture of one bit that unpacks": png(20_000, 20_000, zlib.compress(bytes(2501 * 20_000), 9), depth=1),
    "a picture too high": bomb(1, 60_000),
    "a picture with a long text": text_bomb(),
    "a picture of an odd depth": png(4, 4, zlib.compress(bytes(20)), depth=3),
}
FOLDERS = {
    "bytes": b"a\xff\xfeb",
    "a line's end": b"a\nb",
    "a terminal's command": b"a\x1b[2Jb",
    "markup": b"[red]x[_] [bold",
    "a formula": b"$x^$",
    "another direction": "a\u202eb".encode(),
    "HTML": b"<script>alert(1)<details>",
    "a bar": b"a|b",
    "an option": b"--out=x",
    "a long name": b"x" * 255,
    "a name of a file": b"config.yaml",
    "quotations": b"a'b\"c`d",
    "a template": b"{{ 7 * 7 }}{% raw %}",
}


def figure(name, content):
    return file(f"figures/{name}", content)


def both(first, then):
    return lambda folder: (first(folder), then(folder))


def failed(folder):
    (folder / "metrics.json").unlink()
    (folder / "status.json").write_text('{"state": "failed", "reason": "No."}')


def deep(folder):
    inner = folder
    for _ in range(300):
        inner = inner / "d"
    inner.mkdir(parents=True)


def upward(folder):
    (folder / "up").symlink_to("..")


def figure_cases():
    for name, content in PICTURES.items():
        yield f"figures: {name}", accepted(figure("a.png", content), "the page leaves it out, or makes it small")
    for kind in (fifo, device, loop, socket_file, dangling, directory):
        yield f"figures: a {kind.__name__}", accepted(instead("figures/a.png", kind), "the page leaves it out")
    for name in ("' onload='alert(3).png", "[_]$x^$.png", "\x1b[2J.png", "\udcff.png"):
        yield (
            f"figures: the name {name!a}",
            accepted(
                lambda folder, name=name: instead(f"figures/{name}", lambda path: path.write_bytes(bomb(4, 4)))(folder),
                "its name is text",
            ),
        )
    yield "figures: a loop for the folder", accepted(instead("figures", loop), "there are no figures in it")
    yield (
        "figures: many",
        accepted(
            lambda folder: [figure(f"{i}.png", bomb(4, 4))(folder) for i in range(60)],
            "the page has some, and counts them",
        ),
    )
    for name, of in FOLDERS.items():
        yield f"a folder's name: {name}", accepted(renamed(of), "it is shown as text")
        yield f"a failed run's folder: {name}", listed(both(failed, renamed(of)), "failed")
    yield "a folder in its own link", accepted(upward, "links to folders are not followed")
    yield "folders in folders", accepted(deep, "they hold nothing")


# --- figures of the report --------------------------------------------------------------------------------

SIZES = ("1.7e308", "-1.7e308", "1e99", "1e-320")


def points(qualities, rate="5", memory=None):
    """A damage: runs of several methods, which have a point each in figures of cost."""

    def make(folder):
        for i, quality in enumerate(qualities):
            memory_too = f', "train/peak_memory_mib": {memory}' * (memory is not None)
            numbers = f'{{"test/fisher": {quality}, "train/iterations_per_second": {rate}{memory_too}}}'
            write_run(folder.parent / f"other{i}", CONFIG.replace("x.dsm", f"x.$m{i}^$"), numbers)

    return make


def grid(first, second, quality="1.{}{}"):
    """A damage: runs of a sweep over two numbers."""

    def make(folder):
        for i, n_unroll in enumerate(first):
            for j, std in enumerate(second):
                swept = f"noise: {{std: {std}}}\nn_unroll: {n_unroll}\n"
                numbers = f'{{"test/fisher": {quality.format(i, j)}}}'
                write_run(folder.parent / f"other{i}{j}", CONFIG.replace("x.dsm", "x.cd") + swept, numbers)

    return make


def drawing_cases():
    for size in SIZES:
        yield f"cost: a quality of {size}", accepted(points([size, "1"]), "numbers beyond 1e100 are not drawn")
    yield "cost: a rate of nearly zero", accepted(points("12", rate="5e-324"), "its seconds are not drawn")
    yield "cost: the largest memory", accepted(points("12", memory="1e308"), "it is not drawn")
    yield "heat map: the largest numbers", accepted(grid("12", ("1e308", "-1e308")), "ticks are texts")
    yield "heat map: infinity and no number", accepted(grid("12", (".inf", ".nan", "1")), "it has no map")
    yield "heat map: the largest values", accepted(grid("12", "12", "1.{}{}e308"), "they are not drawn")


CASES = dict(
    case for made in (yaml_cases, json_cases, curve_cases, place_cases, figure_cases, drawing_cases) for case in made()
)
LONG = {  # seconds each
    "metrics.csv: sixty megabytes": accepted(file("metrics.csv", long_curve), "a long run has them"),
    "metrics.csv: hundreds of curves": accepted(file("metrics.csv", wide_curves), "two dozen figures are drawn"),
    "figures: millions of pixels": accepted(figure("a.png", bomb(6000, 8000)), "the page makes it small"),
}


# --- the worker -------------------------------------------------------------------------------------------


def attempt(case, root):
    """How a report over two good runs and a spoilt one ends."""
    from eblvm_lit.reports.__main__ import main

    for seed in range(2):
        config = CONFIG.replace("seed: 3", f"seed: {seed}").replace("x.dsm", "x.ssm")  # another group
        write_run(root / "runs" / f"good{seed}", config)
    case.make(write_run(root / "runs" / "spoilt"))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of computing, and not of waiting
    try:
        main([str(root / "runs"), "--out", str(root / "out"), "--html", str(root / "out" / "page.html")])
        return "report"
    except SystemExit as stopped:
        return f"sentence: {stopped.code}"
    except TimeoutError:
        return "slow"
    except BaseException as error:
        return f"traceback: {error!r:.300}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def ring(*_):
    raise TimeoutError


def worker(folder):
    """Run the named cases, each below the folder; write one line of JSON for each as soon as it has ended."""
    resource.setrlimit(resource.RLIMIT_AS, (4 * GIBIBYTE,) * 2)
    os.environ["SECRET"] = SECRET
    signal.signal(signal.SIGPROF, ring)
    os.fsync = lambda descriptor: None  # a thousand files, which need not outlast the machine
    cases = list((CASES | LONG).items())
    for index in json.loads((folder / "cases.json").read_text()):
        name, case = cases[index]
        how = attempt(case, folder / str(index))
        # not getrusage, whose maximum a process takes over from the one that has started it
        mebibytes = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 2**10
        with open(folder / "ended.jsonl", "a") as ended:
            ended.write(json.dumps([index, name, how, mebibytes]) + "\n")


if __name__ == "__main__":
    worker(Path(sys.argv[1]))

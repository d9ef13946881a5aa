"""TeX becomes MathML when the site is built, so that browsers show formulas without a script.

A command that the converter does not know would stand in the formula with its backslash; the build fails instead.
"""

import html
import re

from latex2mathml.converter import convert

# Code, which stays as it is, and formulas: $$...$$ in a paragraph of its own, and $...$ within one.
FORMULA = re.compile(
    r"^ *(?P<fence>```+|~~~+).*?^ *(?P=fence) *$|(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|^(?P<indent> *)\$\$(?P<block>(?:(?!\n *\n).)+?)\$\$ *$"
    r"|(?<!\\)\$(?!\s)(?P<inline>(?:\\.|(?!\n *\n)[^\\$])+?)(?<!\s)\$",
    re.MULTILINE | re.DOTALL,
)

# A function's name, with the space that TeX puts beside it.
NAME = re.compile(r"<(mi|mo)>([A-Za-z]{2,})</\1>")

# In a formula on a line of its own: what stands below an operator, and the signs that are larger. Browsers enlarge them
# by a font of mathematics only, which many systems lack.
BELOW = re.compile(r"<msub>(<mo [^>]*>(?:min|max|sup|inf|lim)</mo>)((?:(?!</?msub>).)*?)</msub>", re.DOTALL)
FENCES = re.compile(
    r'<mo stretchy="true" fence="true" form="prefix">([^<]*)</mo>((?:(?!<mo stretchy="true" fence).)*?)'
    r'<mo stretchy="true" fence="true" form="postfix">([^<]*)</mo>',
    re.DOTALL,
)
LARGE = re.compile(r"<mo>(&#x0222B;|&#x02211;|&#x0220F;)</mo>")


def drawn(markdown):
    """Markdown whose formulas are MathML; a ValueError names a command that the converter does not know."""

    def replaced(match):
        if match["block"]:
            return f'{match["indent"]}<div class="formula">{mathml(match["block"].strip(), display="block")}</div>'
        return f'<span class="formula">{mathml(match["inline"])}</span>' if match["inline"] else match[0]

    return FORMULA.sub(replaced, markdown)


def plain(tex):
    """The formula in commands that the converter draws well."""
    # A norm's bars do not stretch, and MathML has no negative space.
    tex = re.sub(r"\\[lr]Vert\b", r"\\|", tex).replace(r"\!", "")
    # Brackets of a given size keep it, whatever an exponent behind them is; \left and \right fit what is between them.
    tex = re.sub(r"\\[bB]igg?l\b", r"\\left", tex)
    tex = re.sub(r"\\[bB]igg?r\b", r"\\right", tex)
    tex = re.sub(r"\\arg\b", r"\\operatorname{arg}", tex)
    return re.sub(r"\\mathrm\{([A-Za-z]{2,})\}", r"\\operatorname{\1}", tex)


def mathml(tex, display="inline"):
    """The formula as MathML; a ValueError names a command that the converter does not know."""
    markup = convert(plain(tex), display=display)
    shown = re.sub(r"<[^>]*>", " ", markup)
    if unknown := re.search(r"\\[A-Za-z]*", html.unescape(shown)):
        raise ValueError(f"the formula {tex} has {unknown[0]}, which latex2mathml does not draw")
    markup = NAME.sub(r'<mo lspace="0.17em" rspace="0.17em">\2</mo>', markup)
    markup = markup.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")  # of \sim, a relation with space around it
    while FENCES.search(markup):  # from the inside to the outside
        markup = FENCES.sub(lambda match: _fenced(match, display), markup)
    if display == "block":
        markup = BELOW.sub(r"<munder>\1\2</munder>", markup)
        markup = LARGE.sub(r'<mo largeop="false" mathsize="150%">\1</mo>', markup)
    return markup


def _fenced(match, display):
    """Brackets as high as a fraction or a sum between them; without a font of mathematics none would stretch."""
    left, inner, right = match.groups()
    signs = [f'<mo stretchy="false">{sign}</mo>' if sign else "" for sign in (left, right)]
    if display == "block" and re.search("<mfrac|<munder", inner):
        signs = [sign.replace('false"', 'false" mathsize="190%"') for sign in signs]
        signs = [f'<mpadded voffset="-0.28em">{sign}</mpadded>' for sign in signs]
    return f"{signs[0]}{inner}{signs[1]}"

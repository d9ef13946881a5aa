"""For mkdocs: TeX becomes MathML when the site is built, so that browsers show formulas without a script."""

import html
import re

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)

# A function's name, with the space that TeX puts beside it.
NAME = re.compile(r"<(mi|mo)>([A-Za-z]{2,})</\1>")


def on_page_content(content, **_):
    """Replace the formulas of a page, of its own text and of the docstrings on it."""
    return FORMULA.sub(_mathml, content)


def _mathml(match):
    tag = match[1]
    tex = html.unescape(match[2]).strip()
    # A norm's bars do not stretch, and MathML has no negative space.
    tex = re.sub(r"\\[lr]Vert\b", r"\\|", tex).replace(r"\!", "")
    tex = re.sub(r"\\mathrm\{([A-Za-z]{2,})\}", r"\\operatorname{\1}", tex)
    markup = convert(tex, display="block" if tag == "div" else "inline")
    markup = NAME.sub(r'<mo lspace="0.17em" rspace="0.17em">\2</mo>', markup)
    return f'<{tag} class="formula">{markup}</{tag}>'

"""Draws the diagrams of docs/concepts.md and the tree of docs/choosing.md: python docs/site/concepts.py."""

import re
from html import escape
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images" / "concepts"
WIDTH = 760
# The fill and the edge of a box: what is data or noise, what belongs to the model, and what to the posterior.
DATA, MODEL, POSTERIOR, LOSS = (
    ("#f4f4f4", "#888888"),
    ("#e3edf7", "#4477aa"),
    ("#fdeee3", "#cc6633"),
    ("#fff", "#222222"),
)
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
font-family="sans-serif" font-size="15">
<defs><marker id="head" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0L6 3L0 6z" fill="#222"/></marker></defs>
<rect width="100%" height="100%" fill="white"/>"""


def marked(words):
    """Words as SVG: what stands in _{} is lowered, and in ^{} raised.

    The characters of Unicode for indices are in few fonts, and a browser would take each of them from another font.
    """
    found = ""
    height = 0
    for sign, index, plain in re.findall(r"([_^]){(.*?)}|([^_^]+|.)", words):
        wanted = {"_": 4, "^": -5, "": 0}[sign]
        size = ' font-size="75%"' if sign else ""
        part = escape(index or plain)
        found += part if wanted == height == 0 else f'<tspan dy="{wanted - height}"{size}>{part}</tspan>'
        height = wanted
    return found


def box(x, y, width, kind, title, below="", height=None):
    """A box with its upper left corner at (x, y): a title, and a smaller line below it."""
    height = height or (50 if below else 34)
    fill, edge = kind
    middle = x + width / 2
    yield (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{edge}" '
        'stroke-width="1.5"/>'
    )
    yield f'<text x="{middle}" y="{y + 22}" text-anchor="middle">{marked(title)}</text>'
    if below:
        yield f'<text x="{middle}" y="{y + 41}" text-anchor="middle" font-size="13" fill="#444">{marked(below)}</text>'


def arrow(*points, dashed=False):
    """An arrow through some points; a dashed one is where a derivative flows back."""
    path = "M" + "L".join(f"{x} {y}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    yield f'<path d="{path}" fill="none" stroke="#222" stroke-width="1.5"{dash} marker-end="url(#head)"/>'


def text(x, y, words, anchor="start", size=13, colour="#444"):
    """A line of text."""
    yield f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{marked(words)}</text>'


def steps(y, names, reverse=False):
    """Boxes of a posterior's parameters from left to right, an arrow between them; reverse adds dashed arrows back."""
    for i, name in enumerate(names):
        x = 20 + 185 * i
        yield from box(x, y, 140, POSTERIOR, name)
        if i:
            yield from arrow((x - 45, y + (10 if reverse else 17)), (x, y + (10 if reverse else 17)))
        if i and reverse:
            yield from arrow((x, y + 25), (x - 45, y + 25), dashed=True)


def eblvm():
    """What the energy takes and gives, and what has no closed form."""
    yield 170
    yield from box(20, 20, 180, DATA, "v", "observed, such as an image")
    yield from box(20, 100, 180, DATA, "h", "latent, never observed")
    yield from arrow((200, 45), (270, 75))
    yield from arrow((200, 125), (270, 95))
    yield from box(270, 60, 120, MODEL, "E(v, h; θ)", "one number")
    yield from arrow((390, 85), (445, 85))
    yield from box(445, 10, 295, MODEL, "p(v, h) = exp(−E(v, h)) / Z", "known up to Z")
    yield from box(445, 68, 295, LOSS, "p(v) = ∫ p(v, h) dh and Z", "in general without a closed form")
    yield from box(445, 126, 295, POSTERIOR, "p(h | v): approximated by q(h | v; φ)", height=34)


def bism():
    """The K steps of the lower level, the N unrolled steps on a copy, and the step of the upper level."""
    yield 330
    yield from text(20, 22, "Lower level: K steps move φ; θ is fixed", size=15, colour="#cc6633")
    yield from steps(34, ("φ", "φ − α ∂G/∂φ", "…", "φ after K steps"))
    yield from text(
        104, 122, "N unrolled steps on a copy of φ, which remember how they depend on θ", size=15, colour="#cc6633"
    )
    yield from steps(134, ("φ_{0} = φ", "φ_{1}(θ)", "…", "φ_{N}(θ)"), reverse=True)
    yield from arrow((645, 68), (645, 90), (90, 90), (90, 134))
    yield from text(20, 222, "Upper level: one step moves θ; the copy is thrown away", size=15, colour="#4477aa")
    yield from box(575, 234, 140, LOSS, "J(θ, φ_{N}(θ))", "loss of the score")
    yield from arrow((635, 168), (635, 234))
    yield from arrow((655, 234), (655, 168), dashed=True)
    yield from box(20, 234, 140, MODEL, "θ − β dJ/dθ")
    yield from arrow((575, 252), (160, 252))
    yield from text(368, 245, "dJ/dθ = ∂J/∂θ + (∂φ_{N}/∂θ)^{T} ∂J/∂φ", anchor="middle")
    yield from text(
        20, 312, "Solid: values. Dashed: derivatives that flow back. N = 0 has no dashed arrows and no second term."
    )


def vages():
    """The posterior gives L latents, whose mean is the score and whose covariance is in its gradient."""
    yield 215
    yield from box(20, 30, 110, DATA, "noisy v")
    yield from arrow((130, 47), (175, 47))
    yield from box(175, 22, 130, POSTERIOR, "q(h | v; φ)", "K steps down G")
    yield from arrow((305, 47), (350, 47))
    yield from box(350, 22, 150, DATA, "h_{1} … h_{L}", "L latents of each v")
    yield from arrow((425, 72), (425, 110), (205, 110), (205, 128))
    yield from arrow((425, 110), (560, 110), (560, 128))
    yield from box(100, 128, 210, MODEL, "score: mean of ∇_{v}(−E)", "VaES: its value")
    yield from box(420, 128, 310, MODEL, "its θ-gradient: mean and covariance", "VaGES: moves θ; φ is a constant in it")
    yield from arrow((310, 153), (420, 153))
    yield from text(365, 146, "∂J/∂s", anchor="middle")
    yield from text(20, 205, "Nothing is unrolled, but the score may not be differentiated in v.")


def chains():
    """The energy of data is lowered and that of the chain's ends raised."""
    yield 215
    yield from box(20, 24, 150, DATA, "data v")
    yield from box(20, 110, 150, DATA, "start of the chain", "data, last end or noise")
    yield from arrow((170, 41), (470, 41))
    yield from arrow((170, 135), (235, 135))
    yield from box(235, 110, 170, MODEL, "k steps of a chain", "Gibbs or Langevin")
    yield from arrow((405, 135), (470, 135))
    yield from box(470, 16, 130, LOSS, "mean F(v)", "lowered")
    yield from box(470, 110, 130, LOSS, "mean F(v^{−})", "raised")
    yield from arrow((600, 41), (680, 41), (680, 72))
    yield from arrow((600, 135), (680, 135), (680, 106))
    yield from box(620, 72, 120, MODEL, "θ")
    yield from text(20, 196, "The chain's steps are constants: nothing is differentiated through them.")


def bidvl():
    """Which of the three networks each level moves, and by which terms."""
    yield 275
    yield from box(20, 20, 90, DATA, "data v")
    yield from arrow((110, 37), (165, 37))
    yield from box(165, 12, 150, POSTERIOR, "encoder q(h | v)", "ω_{1}")
    yield from arrow((315, 37), (365, 37))
    yield from box(365, 12, 150, POSTERIOR, "generator G(h)", "ω_{2}")
    yield from arrow((515, 37), (570, 37))
    yield from box(570, 20, 170, LOSS, "A: like v again?")
    yield from box(20, 112, 90, DATA, "ĥ ~ N(0, I)")
    yield from arrow((110, 129), (165, 129))
    yield from box(165, 104, 150, POSTERIOR, "generator G(ĥ)", "v̂, an image")
    yield from arrow((315, 120), (365, 120))
    yield from arrow((240, 154), (240, 212), (365, 212))
    yield from box(365, 104, 150, MODEL, "energy E′(v̂)", "θ")
    yield from arrow((515, 120), (570, 120))
    yield from box(570, 104, 170, LOSS, "B: E′(v̂) is low", "D: E′(v) − E′(v̂)")
    yield from box(365, 188, 150, POSTERIOR, "encoder at v̂", "ω_{1}, fixed in C")
    yield from arrow((515, 212), (570, 212))
    yield from box(570, 196, 170, LOSS, "C: is it ĥ again?")
    yield from text(20, 262, "Orange moves in the lower level, down A + B + C; blue in the upper level, down D.")


def noise_contrast():
    """A classifier of data against noise whose logit is the model's log-density."""
    yield 150
    yield from box(20, 16, 170, DATA, "data v")
    yield from box(20, 86, 170, DATA, "noise y, ν for each v", "density p_{n} known")
    yield from arrow((190, 33), (260, 55))
    yield from arrow((190, 105), (260, 80))
    yield from box(260, 44, 270, MODEL, "−F − log Z − log ν − log p_{n}", "log Z is a parameter, too")
    yield from arrow((530, 69), (580, 69))
    yield from box(580, 44, 160, LOSS, "data or noise?", "moves θ and log Z")


def discrepancy():
    """The energy of an example beside the energies of its perturbed neighbours."""
    yield 130
    yield from box(20, 40, 90, DATA, "data v")
    yield from arrow((110, 57), (160, 57))
    yield from box(160, 32, 130, DATA, "v + σξ", "one hidden point")
    yield from arrow((290, 57), (340, 57))
    yield from box(340, 32, 160, DATA, "v + σξ + σξ_{i}", "M neighbours u_{i}")
    yield from arrow((500, 57), (550, 57))
    yield from box(550, 32, 190, LOSS, "F(v) below F(u_{i})?", "moves θ")
    yield from arrow((65, 40), (65, 14), (645, 14), (645, 32))
    yield from text(20, 116, "No score, no chain, no derivative in v: values of the energy only.")


def choosing():
    """The questions that lead from the data to a method; white boxes ask, blue ones answer."""
    yield 385
    yield from box(290, 16, 150, LOSS, "What is v?")
    yield from arrow((290, 33), (170, 33), (170, 86))
    yield from text(178, 26, "points, vectors")
    yield from arrow((440, 33), (625, 33), (625, 86))
    yield from text(560, 26, "images", anchor="end")
    yield from box(40, 86, 260, LOSS, "Are there distant modes?", "Markov chains do not mix between them")
    yield from arrow((90, 136), (90, 190))
    yield from text(97, 168, "yes")
    yield from box(15, 190, 150, MODEL, "method=ed", "no score, no chain")
    yield from arrow((270, 136), (270, 190))
    yield from text(277, 168, "no")
    yield from box(180, 190, 320, LOSS, "Is F(v) known?", "grbm, coupled_grbm, gaussian: yes; deep_toy: no")
    yield from arrow((230, 240), (230, 318))
    yield from text(237, 290, "yes")
    yield from box(80, 318, 190, MODEL, "method=dsm", "best likelihood: sm, ssm, cd")
    yield from arrow((400, 240), (400, 318))
    yield from text(407, 290, "no")
    yield from box(300, 318, 190, MODEL, "method=vages_dsm", "with SM or SSM: bissm")
    yield from box(520, 86, 220, LOSS, "What is the model for?")
    for i, (name, purpose) in enumerate(
        (
            ("method=bimdsm", "latents that describe v"),
            ("method=bidvl", "fast samples, outliers"),
            ("method=lebm", "a generator and its prior"),
            ("method=mdsm", "an energy of v only"),
        )
    ):
        y = 142 + 60 * i
        yield from arrow((534, 120), (534, y + 25), (560, y + 25))
        yield from box(560, y, 180, MODEL, name, purpose)


DIAGRAMS = (eblvm, bism, vages, chains, bidvl, noise_contrast, discrepancy, choosing)


def picture(diagram):
    """One diagram as the text of its file; the first thing that a diagram gives is its height."""
    height, *lines = diagram()
    return "\n".join([HEAD.format(width=WIDTH, height=height), *lines, "</svg>\n"])


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for drawn in DIAGRAMS:
        (PICTURES / f"{drawn.__name__}.svg").write_text(picture(drawn), encoding="utf-8")

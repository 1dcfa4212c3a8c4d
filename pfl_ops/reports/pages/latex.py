"""Tables for LaTeX, with booktabs, and a document that takes them in."""

import re
from collections.abc import Iterator

from pfl_ops.reports.pages.document import Document, ItemList, PageBlock, Picture, Row, Table, TableCell, Text

SIGNS = dict(
    pair.split(" ", 1)
    for pair in r"""
& \&|% \%|$ \$|# \#|_ \_|{ \{|} \}|\ \textbackslash{}|~ \textasciitilde{}|^ \textasciicircum{}|< $<$|> $>$
± $\pm$|− $-$|× $\times$|· $\cdot$|≤ $\leq$|≥ $\geq$|≠ $\neq$|→ $\to$|∞ $\infty$|√ $\surd$|∇ $\nabla$|◇ $\diamond$
✓ $\checkmark$|✗ $\times$|– --|— ---|… \dots{}|“ ``|” ''|’ '|′ $'$|² $^2$|³ $^3$|⁰ $^0$|₀ $_0$|₁ $_1$|ß {\ss}
Γ $\Gamma$|Δ $\Delta$|Θ $\Theta$|Λ $\Lambda$|Σ $\Sigma$|Φ $\Phi$|Ψ $\Psi$|Ω $\Omega$
α $\alpha$|β $\beta$|γ $\gamma$|δ $\delta$|ε $\epsilon$|ζ $\zeta$|η $\eta$|θ $\theta$|ι $\iota$|κ $\kappa$|λ $\lambda$
μ $\mu$|ν $\nu$|ξ $\xi$|π $\pi$|ρ $\rho$|σ $\sigma$|τ $\tau$|υ $\upsilon$|φ $\phi$|χ $\chi$|ψ $\psi$|ω $\omega$
""".strip()
    .replace("\n", "|")
    .split("|")
) | {"|": r"\textbar{}"}

PREAMBLE = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[margin=2cm]{geometry}
\usepackage{amssymb,booktabs,graphicx}
"""


def to_latex(table: Table) -> str:
    """A `table` with caption and label; needs booktabs, and graphicx, by which it shrinks to the width of the line."""
    long = sum(table.long)
    share = 0.9 / max(2, long + 0.35 * (table.width - long))
    columns = "".join(
        f"p{{{share:.2f}\\linewidth}}" if wide else "r" if numeric else "l"
        for wide, numeric in zip(table.long, table.numeric, strict=True)
    )
    inside = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *_head(table),
        r"\midrule",
        *_body(table),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if not long:
        inside = [r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%", *inside[:-1], inside[-1] + "}"]
    notes = [tex(note) for note in table.notes]
    notes += [f"$^{{{number}}}$ {tex(note)}" for note, number in table.footnotes.items()]
    return "\n".join([
        r"\begin{table}[htbp]", r"\centering", r"\small",
        rf"\caption{{{tex(table.caption)}}}", rf"\label{{tab:{_label(table.name)}}}",
        *inside,
        *([r"\par\smallskip\footnotesize\raggedright", *(f"{note}\\par" for note in notes)] if notes else []),
        r"\end{table}", "",
    ])  # fmt: skip


def to_latex_document(document: Document) -> str:
    """A document that can be compiled where `write` has put its tables and figures."""
    parts = [PREAMBLE, rf"\title{{{tex(document.title)}}}", r"\author{}", rf"\date{{{tex(document.generated)}}}", ""]
    parts += [r"\begin{document}", r"\maketitle", tex(document.subtitle), ""]
    for section in document.sections:
        parts += [rf"\section*{{{tex(section.title)}}}"] if section.title else []
        parts += [_block(block) + "\n" for block in section.blocks]
    return "\n".join([*parts, r"\end{document}", ""])


def tex(text: str) -> str:
    """Special characters escaped; what stands between backticks is set as typed."""
    escaped = "".join(SIGNS.get(sign, sign) for sign in " ".join(text.split()))
    return re.sub(r"`([^`]+)`", r"\\texttt{\1}", escaped)


def _block(block: PageBlock) -> str:
    if isinstance(block, Table):
        return rf"\input{{tables/{block.name}.tex}}"
    if isinstance(block, Picture):
        return "\n".join([
            r"\begin{figure}[htbp]", r"\centering", rf"\includegraphics[width=\linewidth]{{figures/{block.name}.png}}",
            rf"\caption{{{tex(block.caption)}}}", rf"\label{{fig:{_label(block.name)}}}", r"\end{figure}",
        ])  # fmt: skip
    if isinstance(block, ItemList):
        lines = [rf"\item{f'[{tex(term)}]' if term else ''} {tex(said)}" for term, said in block.items]
        kind = "description" if any(term for term, _ in block.items) else "itemize"
        return "\n".join([rf"\begin{{{kind}}}", *lines, rf"\end{{{kind}}}"]) if lines else ""
    return _text(block)


def _text(text: Text) -> str:
    if text.kind == "code":
        return "\\begin{verbatim}\n" + text.text + "\n\\end{verbatim}"
    said = rf"\textbf{{{tex(text.text)}}}" if text.kind == "warning" else tex(text.text)
    return r"\par ".join([said, *map(tex, text.more)])


def _head(table: Table) -> Iterator[str]:
    for row in table.head:
        cells, rules, at = [], [], 1
        for head in row:
            text = tex(head.text) + _mark(table, head.note)
            if head.span > 1:
                text = rf"\multicolumn{{{head.span}}}{{c}}{{{text}}}"
                if head.text:
                    rules.append(rf"\cmidrule(lr){{{at}-{at + head.span - 1}}}")
            elif table.numeric[at - 1]:
                text = rf"\multicolumn{{1}}{{r}}{{{text}}}"
            cells.append(text)
            at += head.span
        yield " & ".join(cells) + r" \\"
        if rules:
            yield " ".join(rules)


def _body(table: Table) -> Iterator[str]:
    for i, row in enumerate(table.rows):
        if i and row.kind:
            yield r"\midrule"
        yield _row(table, row) + r" \\"


def _row(table: Table, row: Row) -> str:
    if row.kind == "block":
        return rf"\multicolumn{{{table.width}}}{{l}}{{\textbf{{{tex(row.title)}}}}}"
    cells = " & ".join(_entry(table, entry) for entry in row.entries)
    return "{}" + cells if cells.startswith(("*", "[")) else cells  # a star or length behind \\ belongs to that


def _entry(table: Table, entry: TableCell) -> str:
    shown, sign, spread = entry.text.partition(" ± ")
    text = tex(shown)
    if entry.mark == "best":
        text = rf"\textbf{{{text}}}"
    elif entry.mark in ("missing", "elsewhere") and text:
        text = rf"\textit{{{text}}}"
    text += (rf" {{\scriptsize$\pm$ {tex(spread)}}}" if sign else "") + _mark(table, entry.note)
    return text + "".join(rf" {{\scriptsize$\mid$ {tex(line)}}}" for line in entry.below)


def _mark(table: Table, note: str) -> str:
    return f"$^{{{table.footnotes[note]}}}$" if note else ""


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name)

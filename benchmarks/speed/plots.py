"""Pictures for docs/benchmarks.md."""

from pathlib import Path

from benchmarks.speed.comparison import ContenderResult

PICTURES = Path("docs/pictures")


def bars(results: list[ContenderResult], title: str, name: str) -> Path:
    """Tokens per second, fastest on top, with the turns as dots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ordered = sorted(results, key=lambda each: each.rate)
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(ordered) + 1.2))
    colours = ["#1a1a1a" if each.name.startswith("Onyx") else "#b0b0b0" for each in ordered]
    axes.barh([each.name for each in ordered], [each.rate for each in ordered], color=colours)
    for row, each in enumerate(ordered):
        axes.plot(each.rates, [row] * len(each.rates), ".", color="#d04030")
    axes.set_xlabel("tokens per second, padding not counted")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
    return path

"""Model shapes: by name from data/models.toml, from a file of the same form, or from a Hugging Face config.json."""

import dataclasses
import tomllib
from functools import cache
from pathlib import Path

from gpucourse.catalog.hf_config import read_config
from gpucourse.catalog.shapes import Experts, Latent, Shape, gpt, llama
from gpucourse.errors import BadInput, unknown
from gpucourse.settings import DATA

STYLES = {"gpt": gpt, "llama": llama}
_KEYS = {field.name for field in dataclasses.fields(Shape)} - {"name"}


def shape(model: str) -> Shape:
    """The shape of a known model, of a TOML file with one such table, or of a config.json (or the folder it is in)."""
    path = Path(model)
    if path.is_dir() and (path / "config.json").is_file():
        return read_config(path / "config.json")
    if path.suffix == ".json":
        return read_config(path)
    if path.suffix == ".toml":
        return _own(path)
    if model not in _rows():
        raise unknown("model", model, [*_rows(), "a model.toml or config.json file"])
    return _build(model, _rows()[model])


def models() -> tuple[str, ...]:
    """Every known name, in the order of the file."""
    return tuple(_rows())


def published_parameters(model: str) -> int:
    """The parameter count that the publisher of a known model gives."""
    if model not in _rows():
        raise unknown("model", model, _rows())
    return _rows()[model]["parameters"]


@cache
def _rows() -> dict[str, dict]:
    return tomllib.loads((DATA / "models.toml").read_text())


def _own(path: Path) -> Shape:
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"model file {path} cannot be read: {error}") from None
    if len(tables) != 1 or not all(isinstance(table, dict) for table in tables.values()):
        raise BadInput(f"model file {path} must hold exactly one table, [name], as in data/models.toml")
    return _build(*next(iter(tables.items())))


def _build(name: str, row: dict) -> Shape:
    sizes = dict(row)
    sizes.pop("parameters", None)
    style = sizes.pop("style", None)
    if style not in STYLES:
        raise unknown(f"{name}: style", style, STYLES)
    for key in sizes:
        if key not in _KEYS:
            raise unknown(f"{name}: key", key, sorted(_KEYS))
    try:
        for key, kind in (("experts", Experts), ("latent", Latent)):
            if key in sizes:
                sizes[key] = kind(**sizes[key])
        return STYLES[style](name, **sizes)
    except TypeError as error:  # a required size is missing, or experts and latent have another key
        raise BadInput(f"{name}: {str(error).split('() ')[-1]}") from None

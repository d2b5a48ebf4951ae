"""The model types that run.yaml can name: the built-in ones written out, and a user's own as `module:Class`."""

import difflib
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from trainwright.errors import InputError

if TYPE_CHECKING:
    from trainwright.trainable import Setup, Trainable

BUILT_IN: Final = {
    "lm": "trainwright.models.lm:LM",
    "mamba2": "trainwright.models.mamba2:Mamba2",
    "mamba2_sequence": "trainwright.models.mamba2_sequence:Mamba2Sequence",
    "dqn": "trainwright.models.dqn:DQN",
    "ppo": "trainwright.models.ppo:PPO",
    "nlinear": "trainwright.models.linear_forecasters:NLinear",
    "dlinear": "trainwright.models.linear_forecasters:DLinear",
    "tft": "trainwright.models.tft:TFT",
}


class Buildable(Protocol):
    """What `find` gives: a class with `build`; `options` and `data_options` are its pydantic models, or None."""

    options: type[Any] | None
    data_options: type[Any] | None

    def build(self, setup: "Setup") -> "Trainable": ...


def find(model_type: str) -> Buildable:
    """Import the class of a model type: a name of `BUILT_IN`, or `module:Class` (importable from here, too).

    Errors: InputError for an unknown name, a module that is missing or fails, a missing class, one without `build`.
    """
    place = BUILT_IN.get(model_type, model_type)
    module_name, colon, class_name = place.partition(":")
    if not colon:
        raise InputError(f"unknown model type {model_type!r}; {_advice(model_type)}")
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise InputError(f"model type {model_type!r}: expected module:Class, as in my_models:Regression")
    module = _imported(module_name, model_type)
    found = getattr(module, class_name, None)
    if found is None:
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        nearest = difflib.get_close_matches(class_name, classes, n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise InputError(f"model type {model_type!r}: {module.__file__} has no {class_name!r}{hint}")
    if not isinstance(found, type) or not callable(getattr(found, "build", None)):
        raise InputError(
            f"model type {model_type!r}: {class_name} is no class with a classmethod build(setup); "
            "derive it from trainwright.torch_trainable.TorchTrainable"
        )
    return cast("Buildable", found)


def _advice(model_type: str) -> str:
    nearest = difflib.get_close_matches(model_type.lower(), BUILT_IN, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{hint}known types: {', '.join(BUILT_IN)}; your own: module:Class"


def _imported(name: str, model_type: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(name, model_type, error) from error
        raise InputError(
            f"model type {model_type!r}: there is no module {name!r} in {here} or among the installed packages"
        ) from error
    except Exception as error:  # a user's module may raise anything
        raise _failed(name, model_type, error) from error


def _failed(name: str, model_type: str, error: Exception) -> InputError:
    return InputError(f"model type {model_type!r}: importing {name!r} failed: {type(error).__name__}: {error}")

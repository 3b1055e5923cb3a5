"""Makes a command line of a function: its signature is its options, its docstring its help."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from stepscope import registry
from stepscope.cli import output
from stepscope.present._printable import printable
from stepscope.records import dataclass

__all__ = ["Argument", "NameIn", "Rest", "Written", "arguments", "call", "with_flags", "with_options_of"]

Command = Callable[..., "int | None"]
CommandT = TypeVar("CommandT", bound=Command)
Parameters = dict[str, inspect.Parameter]

_READABLE = (str, int, float, bool, Path)


@dataclass(frozen=True, slots=True)
class NameIn:
    """Says of an argument that it names a plug-in of that folder; --help lists them."""

    folder: str


@dataclass(frozen=True, slots=True)
class Written:
    """Says of an argument that it names a file that the command writes: it is no input and in no store."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Says of the positional argument that it takes the rest of the line, options of others among it."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in a line: what somebody typed or a pattern of theirs found cannot break it."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def with_options_of(folders: str | tuple[str, ...], parameter: str) -> Callable[[CommandT], CommandT]:
    """Gives a command with `**options` the options of the plug-in that the named parameter names.

    It is one of a folder, or of the first of several that has one of that name.
    """

    def mark(command: CommandT) -> CommandT:
        command.options_of = ((folders,) if isinstance(folders, str) else folders, parameter)  # type: ignore[attr-defined]
        return command

    return mark


def with_flags(flags: Mapping[str, str]) -> Callable[[CommandT], CommandT]:
    """Gives a command with `**named: bool` a flag for each name, with its help; those given are True."""

    def mark(command: CommandT) -> CommandT:
        command.flags = flags  # type: ignore[attr-defined]
        return command

    return mark


def call(command: Command, argv: Sequence[str], *, prog: str) -> int | None:
    """Reads the arguments by the signature of the command, and calls it."""
    parameters = _parameters(command)
    plugin = _plugin(command, parameters, argv)
    parser = _Parser(
        prog=prog,
        description=inspect.getdoc(plugin or command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.color = False  # type: ignore[attr-defined]  # newer Pythons would: help looks alike everywhere
    if {"-h", "--help"} & set(argv):  # other packages are looked for only now
        parser.epilog = "\n\n".join(_listings(parameters))
    _add_all(parser, parameters)
    options = {}
    if plugin is not None:
        options = {
            name: parameter
            for name, parameter in _parameters(plugin).items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        _add_all(parser.add_argument_group(f"options of {plugin.__name__}"), options)
    argv, rest = _split(parameters, argv)
    # Intermixed: options may stand between the positional arguments.
    values = vars(parser.parse_intermixed_args(argv)) | rest
    for name, parameter in {**parameters, **options}.items():
        if _Type.of(parameter).many:
            values[name] = tuple(values[name] or ())
    _check_outputs(parameters, values)
    positional = [
        values.pop(name)
        for name, parameter in parameters.items()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    return command(*positional, **values)


def _split(parameters: Parameters, argv: Sequence[str]) -> tuple[Sequence[str], dict[str, Any]]:
    """Our own part of a line, and the rest of it for the argument that takes it, if there is one."""
    name = next((name for name, parameter in parameters.items() if _Type.of(parameter).rest), None)
    if name is None:
        return argv, {}
    valued = set()
    for other, parameter in parameters.items():
        kind = _Type.of(parameter)
        if parameter.kind is parameter.KEYWORD_ONLY and kind.convert is not bool:
            valued |= {f"--{other.replace('_', '-')}", kind.short}
    at, ours = 0, list[str]()
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "--", "-"):
        has_value = argv[at] in valued and at + 1 < len(argv)
        # Together: a value may begin like an option, as in `--set --lr=0.1`.
        joined = has_value and argv[at].startswith("--")
        ours += [f"{argv[at]}={argv[at + 1]}"] if joined else argv[at : at + 1 + has_value]
        at += 2 if argv[at] in valued else 1
    # The parser still wants to see a value, unless it is asked for help.
    seen = [] if {"-h", "--help"} & set(argv[:at]) or at >= len(argv) else ["-" if at < len(argv) else ""]
    return [*ours, *seen], {name: tuple(argv[at:])}


def _check_outputs(parameters: Parameters, values: Mapping[str, Any]) -> None:
    """Looks at what is to be written before anything is read; every other value may name an input."""
    outputs = [name for name, parameter in parameters.items() if _Type.of(parameter).written]
    words = [
        word
        for name, value in values.items()
        if name not in outputs
        for word in (value if isinstance(value, tuple) else (value,))
    ]
    for name in outputs:
        if values[name] is not None:
            output.check(values[name], words)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as people write it: `TRACE`, or `-o PATH` with `--output PATH` as its long name."""

    name: str
    short: str
    value: str
    positional: bool
    required: bool
    default: Any
    help: str
    folder: str = ""
    """The folder of the plug-ins that it names, where it names one."""


def arguments(function: Callable[..., Any], *, options_only: bool = False) -> list[Argument]:
    """What a command takes; of an analysis, which adds only options to a command, these alone."""
    found = []
    for name, parameter in _parameters(function).items():
        positional = parameter.kind is not parameter.KEYWORD_ONLY
        if positional and options_only:
            continue
        kind = _Type.of(parameter)
        required = parameter.default is parameter.empty
        found.append(
            Argument(
                name=name.upper() if positional else _flag(name),
                short=kind.short,
                value="" if positional else kind.value,
                positional=positional,
                required=required,
                default=None if required else parameter.default,
                help=kind.help,
                folder=kind.folder,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class _Type:
    """What an annotation says about an argument."""

    convert: type
    choices: tuple[Any, ...] = ()
    optional: bool = False
    many: bool = False
    each: int = 1
    """How many values stand behind the option, each time it is given."""
    help: str = ""
    short: str = ""
    folder: str = ""
    written: bool = False
    rest: bool = False
    words: tuple[str, ...] = ()
    """What may stand in place of a number."""

    @property
    def read(self) -> Callable[[str], Any]:
        """Makes a value of a text."""
        if not self.words:
            return self.convert

        def number_or_word(text: str) -> Any:
            return text if text in self.words else self.convert(text)

        number_or_word.__name__ = self.value  # argparse names it where it fails
        return number_or_word

    @property
    def value(self) -> str:
        """What stands behind the option: nothing for a flag, its choices, or the kind of value."""
        if self.convert is bool:
            return ""
        if self.choices:
            return f"{{{','.join(map(str, self.choices))}}}"
        if self.folder:
            return "NAME"
        name = self.convert.__name__.upper() if self.convert is not str else "TEXT"
        return " ".join(["|".join((name, *self.words))] * self.each)

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> _Type:
        annotation, text, short, folder, written, rest = parameter.annotation, "", "", "", False, False
        if get_origin(annotation) is Annotated:
            annotation, *extras = get_args(annotation)
            texts = [extra for extra in extras if isinstance(extra, str)]
            short = next((extra for extra in texts if extra.startswith("-")), "")
            text = next((extra for extra in texts if extra != short), "")
            folder = next((extra.folder for extra in extras if isinstance(extra, NameIn)), "")
            written = any(isinstance(extra, Written) for extra in extras)
            rest = any(isinstance(extra, Rest) for extra in extras)
        optional, many, each, words = False, False, 1, ()
        if get_origin(annotation) in (Union, UnionType):
            inner = [option for option in get_args(annotation) if option is not NoneType]
            annotation, optional = inner[0], True
            if len(inner) == 2 and inner[0] is int and get_origin(inner[1]) is Literal:
                words = get_args(inner[1])
            elif len(inner) != 1:
                raise TypeError(f"{parameter}: an option has one type, a number may be a word, or None")
        if get_origin(annotation) is tuple:
            annotation, many = get_args(annotation)[0], True
            if get_origin(annotation) is tuple:
                annotation, each = get_args(annotation)[0], len(get_args(annotation))
        if get_origin(annotation) is Literal:
            choices = get_args(annotation)
            return cls(type(choices[0]), choices, optional, many, each, text, short)
        if annotation not in _READABLE:
            raise TypeError(f"{parameter}: cannot be read from a command line")
        return cls(annotation, (), optional, many, each, text, short, folder, written, rest, words)


def _listings(parameters: Parameters) -> Iterator[str]:
    """For each argument that names a plug-in, the names there are, with their first lines."""
    for name, parameter in parameters.items():
        if folder := _Type.of(parameter).folder:
            listed = registry.names(folder, installed=True)
            width = max((len(known) for known, _ in listed), default=0)
            yield "\n".join([f"{name}s:", *(f"  {known:<{width}}  {line}" for known, line in listed)])


def _plugin(command: Command, parameters: Parameters, argv: Sequence[str]) -> Callable[..., Any] | None:
    """The plug-in whose options the command takes over, found in a first reading of the arguments."""
    folders, parameter = getattr(command, "options_of", ((), ""))
    if not folders:
        return None
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    _add_all(parser, parameters)
    known, _ = parser.parse_known_intermixed_args(argv)
    name = getattr(known, parameter)
    if name is None:
        return None
    return registry.load(folders[0] if len(folders) == 1 else registry.among(folders, name), name)


def _parameters(function: Callable[..., Any]) -> Parameters:
    """The parameters, their annotations resolved, without `**options`.

    The first parameter of a plug-in may have a type that is imported for type checkers only; such a one
    keeps its text, for it is never read from a command line.
    """
    plain = inspect.unwrap(function)
    found = {}
    for name, parameter in inspect.signature(plain).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise TypeError(f"{plain.__name__}: write {name}: tuple[str, ...] in place of *{name}")
        found[name] = parameter.replace(annotation=_resolve(plain, parameter.annotation))
    flags: Mapping[str, str] = getattr(plain, "flags", {})
    for name, text in flags.items():
        found[name] = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, text]
        )
    return found


def _resolve(function: Callable[..., Any], annotation: Any) -> Any:
    def carrier() -> None: ...

    carrier.__annotations__ = {"it": annotation}
    try:
        return get_type_hints(carrier, globalns=getattr(function, "__globals__", {}), include_extras=True)[
            "it"
        ]
    except NameError:
        return annotation


def _add_all(parser: argparse._ActionsContainer, parameters: Parameters) -> None:
    for name, parameter in parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            _add_option(parser, name, parameter)
        else:
            _add_positional(parser, name, parameter)


def _add_positional(parser: argparse._ActionsContainer, name: str, parameter: inspect.Parameter) -> None:
    found = _Type.of(parameter)
    has_default = parameter.default is not parameter.empty
    settings: dict[str, Any] = {"type": found.read, "help": _help(found.help), "metavar": name.upper()}
    if found.many:
        settings["nargs"] = "*" if has_default else "+"
    elif has_default:
        settings |= {"nargs": "?", "default": parameter.default}
    if found.choices:
        settings["choices"] = found.choices
    parser.add_argument(name, **settings)


def _add_option(parser: argparse._ActionsContainer, name: str, parameter: inspect.Parameter) -> None:
    found = _Type.of(parameter)
    flags = [flag for flag in (found.short, _flag(name)) if flag]
    required = parameter.default is parameter.empty
    if found.convert is bool:
        action = argparse.BooleanOptionalAction if parameter.default else "store_true"
        parser.add_argument(
            *flags, dest=name, action=action, default=parameter.default, help=_help(found.help)
        )
        return
    settings: dict[str, Any] = {
        "dest": name,
        "type": found.read,
        "required": required,
        "help": _help(found.help),
    }
    if found.choices:
        settings["choices"] = found.choices
    else:
        settings["metavar"] = tuple(found.value.split()) if found.each > 1 else found.value
    if found.many:
        settings |= {"action": "append"} if found.each == 1 else {"action": "append", "nargs": found.each}
    elif not required:
        settings["default"] = parameter.default
        if parameter.default is not None:
            settings["help"] = _help(f"{found.help} (default: {parameter.default})".strip())
    parser.add_argument(*flags, **settings)


def _flag(name: str) -> str:
    """An option as people type it; a name that Python keeps for itself ends in `_`: `pass_` is --pass."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def _help(text: str) -> str:
    """A text that argparse shows as it is."""
    return text.replace("%", "%%")

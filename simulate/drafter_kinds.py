"""Kinds of drafters: what the entry of a kind says, and the kind that a configuration states.

Entries stand in `executor.drafters`, one folder a kind, and are found by name when they are asked for. Nothing here or
in an entry imports torch: what needs it is named as `module:name`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulate.model_sizes.forward_pass import Forward, Matrix
from simulate.model_sizes.hf_config import OWN_SWEEP, parsed, shape_name
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError
from treeopt.registry import Named, Registry

Config = Mapping[str, Any] | Path | str  # a config.json's content, its path, or the path of its folder
Fields = Mapping[str, Any]  # the content of a config.json
Recognise = Callable[[Mapping[str, Sequence[int]]], bool]
# Fields that name a class, of treeopt, transformers, vLLM, SGLang and speculators.
NAMES = ("treeopt_drafter", "speculators_model_type", "architectures", "model_type")
# Part of a class name or field -> a kind that treeopt does not have.
_UNKNOWN = {
    "domino": "Domino",
    "jetspec": "JetSpec",
    "mlpspeculator": "an MLP speculator",
    "arcticmlp": "an Arctic speculator",
    "arcticlstm": "an Arctic speculator",
    "redrafter": "ReDrafter",
    "recurrentdraft": "ReDrafter",
    "assistant": "an assistant that reads its target's keys",
}
ALIKE = ({"eagle", "eagle3"}, {"dflash", "dspark"})  # kinds whose configurations may be
_ANY = {"draft": "a drafter", "specul": "a speculator"}  # parts of the class names of all other drafters


@dataclass(frozen=True)
class DrafterShape:
    """The forwards of a drafter at each level of a tree.

    Attributes:
        level: the forward of a level; its head is applied to all nodes that are fed.
        parallel: levels come from one pass over the last token (Medusa), not from each other.
        opening: the forward over the committed tokens, once per step (EAGLE-3's fusion, Hydra++'s layer); None without.
        deeper: the forwards of the levels after the first; the last one also serves all levels after it. (): all
            levels are like the first.
        shared_head: parallel heads share one LM head.
        slots: tokens of a sequence in the first level's forward, which drafts the levels after it too; 0: one level.
        longest: levels that it can draft; None: no limit is known.
    """

    level: Forward
    parallel: bool = False
    opening: Forward | None = None
    deeper: tuple[Forward, ...] = ()
    shared_head: bool = False
    slots: int = 0
    longest: int | None = None

    def shared(self, devices: int, tensor: int = 0) -> "DrafterShape":
        """Return the part of each of several devices; see `Forward.shared`."""
        opening = None if self.opening is None else self.opening.shared(devices, tensor)
        deeper = tuple(forward.shared(devices, tensor) for forward in self.deeper)
        return replace(self, level=self.level.shared(devices, tensor), opening=opening, deeper=deeper)

    def at(self, depth: int) -> Forward:
        """Return the forward of the level that has `depth` levels before it."""
        return (self.level, *self.deeper)[min(depth, len(self.deeper))]

    @property
    def read(self) -> tuple[Forward, ...]:
        """The forwards that read a prompt during prefill."""
        attends = () if self.parallel or not self.level.layers else (self.level,)
        return (*attends, *(() if self.opening is None else (self.opening,)))


def no_work() -> DrafterShape:
    """Return a drafter without a model: no work for the device; the host waits once per step, as for heads.

    SpecDecode-Bench (arXiv 2601.11580) found n-grams to take about 0.6 % of verification.

    >>> no_work().level.weights
    0
    """
    return DrafterShape(Forward(()), parallel=True)


def heads_of(target: Shape | None) -> Shape:
    """Return the target that heads take their sizes from.

    Raises:
        CostError: it is not known.
    """
    if target is None:
        raise CostError("heads take their sizes from their target: give the target's config too")
    return target


def decoder(layer: Shape, matrices: tuple[Matrix, ...], vocab: int, layers: int) -> Forward:
    """Return a forward of decoder layers with these matrices and an LM head."""
    return Forward(
        matrices,
        head=(vocab, layer.hidden),
        layers=layers,
        attention=tuple((layers, like.attention) for like in replace(layer, groups=()).layer_groups if like.attention),
        hidden=layer.hidden,
    )


@dataclass(frozen=True)
class Sizes:
    """The work and the reads of a kind, for step times on hardware that was not measured.

    Attributes:
        shape: the sizes by the content of a config.json, the drafter's or where it has none the target's, and the
            target if it is known. Raises CostError where a field is wrong, missing or not covered.
        own_config: the target's config.json cannot stand in for the drafter's.
        any_width: it may be of another width than the target.
        any_vocabulary: it may score fewer tokens than the target.
        assumed: sentences on what is assumed, by the drafter's config.json (None without one), the target and the
            drafter's sizes.
    """

    shape: Callable[[Fields, Shape | None], DrafterShape]
    own_config: bool = False
    any_width: bool = False
    any_vocabulary: bool = False
    assumed: Callable[[Fields | None, Shape, DrafterShape], Sequence[str]] = lambda config, target, drafter: ()


@dataclass(frozen=True)
class RandomWeights:
    """A drafter of random weights, whose speed is that of a trained one.

    Attributes:
        option: the option that asks for it: a word, or a word and a letter for a number, such as `medusa:K`.
        number: what the number counts.
        most: largest number; 0 for an option without one.
        make: `module:function`, called with the target, the number (0 without one) and `packed`, see `load_target`.
    """

    option: str
    make: str
    number: str = ""
    most: int = 0

    def __str__(self) -> str:
        """Return the option with its meaning."""
        return self.option if not self.most else f"{self.option} ({self.number}, at most {self.most})"


@dataclass(frozen=True)
class Files:
    """The files of a kind.

    Attributes:
        recognise: whether tensors are this kind's, by name -> shape; each name stands there as the file has it, and as
            readers spell it (`executor.checkpoints.tensors.detect_layout`).
        read: `module:function` of the stored tensors and the target; returns the drafter.
        write: `module:function` of drafter, layout (None: the default), target (None: unknown) and the target's name;
            returns the content of the files.
        layouts: the names that `write` knows beside its default.
        names: names of files that hold nothing else, most usual first.
        needs: tensors that all drafters of this kind have, as readers spell them.
        known_as: the layouts that are read, for the documentation.
        whole: the tensors are a language model's; a field of config.json that only this kind has tells it.
    """

    recognise: Recognise
    read: str
    write: str
    layouts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    known_as: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Training:
    """How a kind is trained.

    Attributes:
        recipes: `executor.drafters.base.recipe.Recipe` of this kind.
        untrained: `module:function` of recipe, target, and a function that returns the so many tokens that are most
            often learnt; returns the drafter that training begins with.
        fields: fields of a recipe that other kinds lack.
        resumed: `module:function` of recipe and a drafter to start from, which it may change in place or replace;
            "": it is taken as it is.
        begins_from: other kinds that training may start from.
    """

    recipes: tuple[Named, ...]
    untrained: str
    fields: tuple[str, ...] = ()
    resumed: str = ""
    begins_from: tuple[str, ...] = ()


@dataclass(frozen=True)
class DrafterKind:
    """A kind of drafter.

    A kind may lack any part: drafters without weights have neither sizes nor files, and `named` makes them. A kind
    that lives in the target's own checkpoint is made by `named` too, which reads the target's folder. Several tokens
    from one forward, confidences and blocks are the drafter's own matter; `parallel` says how its time grows.

    Attributes:
        name: as traces, profiles and `--kind` have it.
        title: in sentences, such as `Medusa heads`.
        words: parts of class names in a config.json that state it, in small letters without `-` and `_`.
        fields: fields of a config.json that only this kind has.
        priority: kinds of higher priority are asked first whether a configuration or tensors are theirs.
        parallel: drafts all levels in one forward of the root.
        sizes: its sizes; None for a kind without a model, whose drafting costs next to nothing.
        named: `module:function` of a name and the target, for a kind that needs no files: `NAME` or `NAME:...` in place
            of a path; returns the drafter, or raises UsageError.
        files: its files; None for a kind that has none, or is a whole model.
        training: how it is trained; None if it is not.
        random: random weights for timing; None without.
        reads: `module:function` of drafter and target: weights that one forward reads; "" if it is not known.
    """

    name: str
    title: str
    words: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    priority: int = 0
    parallel: bool = False
    sizes: Sizes | None = None
    named: str = ""
    files: Files | None = None
    training: Training | None = None
    random: RandomWeights | None = None
    reads: str = ""


DRAFTERS: Registry[DrafterKind] = Registry("drafter", "executor.drafters", group="treeopt.drafters")


def by_priority() -> list[DrafterKind]:
    """Return all kinds, those of highest priority first."""
    return sorted(DRAFTERS.values(), key=lambda kind: (-kind.priority, kind.name))


def kind_of_name(name: str) -> DrafterKind | None:
    """Return the kind that a name in place of a path asks for; None for a path.

    >>> kind_of_name("data/models/stdlib-eagle") is None
    True
    """
    kind = known_kind(name)
    return kind if kind is not None and kind.named else None


def known_kind(name: str) -> DrafterKind | None:
    """Return the kind of a recorded name, such as `prompt-lookup:vllm`; None for an unknown one."""
    first = name.partition(":")[0]
    return DRAFTERS[first] if first in DRAFTERS else None  # noqa: SIM401 - an unknown name is a UsageError


def without_sizes() -> list[str]:
    """Return the names of the kinds without a model."""
    return [kind.name for kind in DRAFTERS.values() if kind.sizes is None]


def kind_of_drafter(drafter: Config, *, priced: bool = False) -> str | None:
    """Return the kind of drafter that a configuration states; None if it states none.

    Args:
        drafter: a config.json's content, its path, the path of its folder, a shape's name, or `prompt-lookup`.
        priced: refuse kinds that are known by name alone.

    Raises:
        CostError: the file cannot be read; names it. Or a kind without a price.

    >>> kind_of_drafter({"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1})
    'eagle3'
    >>> kind_of_drafter({"medusa_num_heads": 5}), kind_of_drafter("1b"), kind_of_drafter("prompt-lookup")
    ('medusa', 'language-model', 'prompt-lookup')
    """
    if str(drafter) in without_sizes():
        return str(drafter)
    if shape_name(drafter) is not None:
        return "language-model"
    return parsed(drafter, _priced_kind if priced else _stated_kind)


def drafter_shape(config: Config, *, kind: str, target: Shape | None = None) -> DrafterShape:
    """Return the sizes of the drafter that a config.json describes.

    Args:
        config: as for `Shape.from_config`; for heads and layers made like the target's, its config also works.
        kind: the drafter's.
        target: the target; heads need it, since their own configuration does not state their sizes.

    Raises:
        UsageError: another kind.
        CostError: names file and field.
    """
    sizes = DRAFTERS[kind].sizes
    if sizes is None:
        return no_work()

    def read(content: Fields) -> DrafterShape:
        stated = _priced_kind(content)
        if stated not in (None, kind) and {stated, kind} not in ALIKE:
            raise CostError(f"the configuration is of kind {stated}, not {kind}: give --kind {stated}")
        try:
            return sizes.shape(content, target)
        except (TypeError, ValueError, AttributeError) as error:
            raise CostError(f"a field that describes the drafter holds a value of another kind: {error}") from error

    return parsed(config, read)


def assumptions(config: Config | None, drafter: DrafterShape, *, kind: str, target: Shape) -> list[str]:
    """Return what the sizes of a drafter assume, and where they do not fit the target; `config` is the drafter's."""
    sizes, head = DRAFTERS[kind].sizes, drafter.level.head
    if sizes is None or head is None:
        return []
    content: Fields | None = None if config is None else parsed(config, dict)
    warnings = list(sizes.assumed(content, target, drafter))
    if content is None and target.experts is not None and drafter.level.layers and not drafter.level.routed:
        warnings.append(
            "the drafter's layer is taken to be dense, as wide as a token's experts; --drafter gives its own"
        )
    tokens, hidden = head
    if not sizes.any_width and target.hidden not in (hidden, (content or {}).get("target_hidden_size")):
        warnings.append(f"the drafter's hidden size is {hidden}, the target's {target.hidden}")
    if not sizes.any_vocabulary and tokens != target.vocab:
        warnings.append(f"the drafter knows {tokens} tokens, the target {target.vocab}")
    return warnings


def class_words(config: Fields, names: Sequence[str] = NAMES[1:]) -> str:
    """Return what a configuration calls its class, in small letters without `-` and `_`."""
    return _plain(" ".join(str(config.get(name) or "") for name in names))


def named_drafter(config: Fields) -> tuple[str, str, DrafterKind | None] | None:
    """Return the class or model_type that names a drafter, its title, and its kind if treeopt has it; None without.

    >>> named_drafter({"architectures": ["EagleMiniCPMForCausalLM"], "model_type": "minicpm"})[:2]
    ('EagleMiniCPMForCausalLM', 'EAGLE')
    """
    values = [config.get(name) for name in NAMES[1:]]
    for name in (str(each) for value in values for each in (value if isinstance(value, list) else [value]) if each):
        kind = DRAFTERS[found] if (found := _kind_in(name)) else None
        if kind is not None and (kind.files is None or not kind.files.needs):
            kind = None  # such as an n-gram, which language models have embeddings of
        unknown = _unknown(_plain(name))
        general = next((title for part, title in _ANY.items() if part in _plain(name)), None)
        if title := unknown or (kind and kind.title) or general:
            return name, title, None if unknown else kind
    return None


def _unknown(words: str) -> str | None:
    """Return the title of a kind that is known by name alone, and is not registered either; None without one."""
    known = {word for kind in DRAFTERS.values() for word in kind.words}
    return next((title for part, title in _UNKNOWN.items() if part in words and part not in known), None)


def _priced_kind(config: Fields) -> str | None:
    """Return the kind that a configuration states; raise CostError for one that is known by name alone."""
    if (unknown := _unknown(class_words(config))) is not None:
        raise CostError(f"architectures: {unknown} has no price: {OWN_SWEEP}")
    return _stated_kind(config)


def _stated_kind(config: Fields) -> str | None:
    """Return the kind that the names or fields of a configuration state."""
    for name in NAMES:
        value = config.get(name)
        words = value.get("kind") if isinstance(value, Mapping) else value
        said = " ".join(map(str, words)) if isinstance(words, list) else str(words or "")
        found = _kind_in(said + " parallel_drafting" if said and config.get("parallel_drafting") else said)
        if found is not None:
            return found
    kinds = (kind for kind in by_priority() for field in kind.fields if config.get(field) is not None)
    return next((kind.name for kind in kinds), None)


def _kind_in(words: str) -> str | None:
    """Return the kind that a class name holds; the longest of several names counts."""
    named = [(len(word), kind.name) for kind in DRAFTERS.values() for word in kind.words if word in _plain(words)]
    return max(named)[1] if named else None


def _plain(words: str) -> str:
    return words.lower().replace("-", "").replace("_", "")

"""Names for the places of stack samples, within a budget of CPU time."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from types import CodeType

from hoptui.domain.facts import clean_text
from hoptui.domain.stacks import ENGINE, Stack, StackFrame, phase_frames
from hoptui.sdk.called_objects import with_package
from hoptui.sdk.code_places import LONGEST_NAME, frame_at, innermost_frame_at
from hoptui.sdk.installed_packages import InstalledPackages

MOST_WAITING = 512
"""Different samples that wait for names. More are counted as left out."""
MOST_STACKS = 1024
"""Different stacks that are remembered, about a megabyte."""
MOST_CHAINS = 512
"""Different chains whose stack is remembered, about a megabyte."""
MOST_PLACES = 4096
"""Places in code whose line and columns are remembered."""
MOST_TAKES = 10
"""So many times, about every two seconds, a stack waits for names. Then it is too old to say what holds the
run back."""
COMPILER = re.compile(
    r"/torch/(?:_dynamo/convert_frame|_dynamo/eval_frame|_inductor/|_functorch/aot_autograd)"
)
"""Files of the compiler of torch. Its stacks are deep and rarely alike, so what it calls gets no names."""
COMPILES = frozenset(("_compile", "compile_inner", "compile_fx", "aot_module_simplified"))
"""Functions of these files in which it compiles."""
ANYWHERE = -2
"""Stands for any instruction of a function that compiles. No frame is at this offset."""
Chain = list[CodeType | int | str | None]
"""The code and the offset of each frame, the innermost first. The last three elements are the phase that the
thread was in, whether it slept in a backward pass, and the name of the module of the innermost function."""
Place = tuple[int, int]
"""The `id` of a code object, and the offset of the instruction in execution. To hash the code object itself
takes longer than all else."""
Sample = tuple[str, int, bool | None]
"""The phase and the number of the stack of a sample without names, and whether the thread slept in a backward
pass. None: that is unknown."""


class StackNames:
    """Names the places of samples. Only the thread that takes them uses it.

    A stack that has been named before costs nearly nothing, so it never waits. Then those come that were
    found since the last take. The others wait for their turn, for `MOST_TAKES` at most. So the many places of
    the start of a run, which never come again, do not keep those of its loop from their names. A stack also
    waits until the packages of its files are known.

    Stacks have numbers: to hash one of thirty frames takes longer than to find its names.
    """

    def __init__(self, packages: InstalledPackages) -> None:
        self._packages = packages
        self._dice = random.Random()
        self._takes = 0
        self._samples: Counter[Sample] = Counter()  # without names
        self._since: dict[Sample, int] = {}  # the number of the take before the first such sample
        self._new: set[Sample] = set()  # since the last take
        self._forget_code()

    def _forget_code(self) -> None:
        self._codes: dict[int, CodeType] = {}
        self._modules: dict[int, str] = {}  # by the `id` of a code object in `_codes`
        self._located: set[int] = set()  # of `_codes`, those of whose files the packages are known
        self._compilers: dict[int, bool] = {}  # by the `id` of a code object in `_codes`
        self._places: dict[Place, Place] = {}  # each one once
        # by the ids and offsets of a chain: the number of its stack, and its code, which keeps the ids
        self._chains: dict[tuple[int, ...], tuple[int, list[CodeType]]] = {}
        self._numbers: dict[tuple[Place, ...], int] = {}
        self._stacks: list[tuple[Place, ...]] = []  # by number
        self._forget_names()

    def _forget_names(self) -> None:
        self._frames: dict[tuple[Place, bool], StackFrame] = {}
        self._named: dict[int, Stack] = {}  # by number
        self._whole: dict[tuple[str, int], Stack] = {}  # with the phase

    def add(self, chains: Iterable[Chain]) -> None:
        """Add samples."""
        for chain in chains:
            *frames, phase, sleeps, module = chain
            codes: list[CodeType] = frames[::2]  # type: ignore[assignment]
            offsets: list[int] = frames[1::2]  # type: ignore[assignment]
            key = (*map(id, codes), *offsets)
            known = self._chains.get(key)
            if known is None:
                if isinstance(module, str):
                    self._modules[id(codes[0])] = module
                if len(self._chains) >= MOST_CHAINS:
                    self._chains.clear()
                known = self._chains[key] = self._number(codes, offsets), codes
            found = str(phase), known[0], None if sleeps is None else bool(sleeps)
            self._samples[found] += 1
            self._new.add(found)
            self._since.setdefault(found, self._takes)

    def _number(self, codes: Sequence[CodeType], offsets: Sequence[int]) -> int:
        """Return the number of a stack, given with its innermost frame first."""
        places: list[Place] = []
        for code, offset in zip(reversed(codes), reversed(offsets), strict=True):
            self._codes[id(code)] = code
            compiles = self._compiles(code)
            place = id(code), ANYWHERE if compiles else offset
            places.append(self._places.setdefault(place, place))
            if compiles:
                break
        number = self._numbers.setdefault(tuple(places), len(self._stacks))
        if number == len(self._stacks):
            self._stacks.append(tuple(places))
        return number

    def _compiles(self, code: CodeType) -> bool:
        """Whether a function compiles. All that it calls belongs to it."""
        found = self._compilers.get(id(code))
        if found is None:
            found = code.co_name in COMPILES and COMPILER.search(code.co_filename) is not None
            self._compilers[id(code)] = found
        return found

    def stacks(self, until: int) -> tuple[Counter[Stack], Counter[Stack] | None, int]:
        """Return samples, those of at least one stack, those that slept, and how many are left out.

        Which slept is None if it is unknown, or if none is in a backward pass. Of stacks that are as new,
        each has the same chance, however often it was found. So what is left out changes no share.

        Args:
            until: The CPU time of this thread, in ns, at which the rest waits for the next call.
        """
        self._takes += 1
        if self._packages.corrected():
            self._forget_names()
        found = [each for each in self._samples if each[1] in self._named]
        waiting = [each for each in self._samples if each[1] not in self._named]
        self._dice.shuffle(waiting)
        waiting.sort(key=self._new.__contains__)  # the new ones are named first, from the end
        self._new.clear()
        unknown: list[Sample] = []
        least = len(found) + 1
        while waiting and (len(found) + len(unknown) < least or time.thread_time_ns() <= until):
            each = waiting.pop()
            if self._packages_known(each[1]):
                self._name(each[1])
                found.append(each)
            else:
                unknown.append(each)
        return *self._counted(found), self._forget([*unknown, *waiting])

    def _packages_known(self, number: int) -> bool:
        """Whether it is known of all files of a stack whether they are of a package."""
        if number in self._named:
            return True
        fresh = {code for code, _ in self._stacks[number]} - self._located
        known = [one for one in fresh if self._packages.place(self._codes[one].co_filename) is not None]
        self._located.update(known)
        return len(known) == len(fresh)

    def _name(self, number: int) -> None:
        """Name the places of a stack."""
        if number not in self._named:
            places = self._stacks[number]
            last = len(places) - 1
            self._named[number] = tuple(
                self._frame(place, innermost=at == last) for at, place in enumerate(places)
            )

    def _counted(self, samples: Iterable[Sample]) -> tuple[Counter[Stack], Counter[Stack] | None]:
        """Take samples with names out. Return how often each stack was found, and how often the thread slept
        in it."""
        counts: Counter[Stack] = Counter()
        slept: Counter[Stack] = Counter()
        known = unknown = False
        for each in samples:
            phase, number, sleeps = each
            stack = self._with_phase(phase, number)
            count = self._samples.pop(each)
            del self._since[each]
            counts[stack] += count
            if stack[-1].function == ENGINE:
                known = True
                slept[stack] += count * bool(sleeps)
            unknown = unknown or sleeps is None
        return counts, slept if known and not unknown else None

    def _with_phase(self, phase: str, number: int) -> Stack:
        """Return a named stack with its phase around it."""
        stack = self._whole.get((phase, number))
        if stack is None:
            frames = phase_frames(clean_text(phase, LONGEST_NAME))
            stack = self._whole[phase, number] = (*frames, *self._named[number])
        return stack

    def _forget(self, waiting: Sequence[Sample]) -> int:
        """Keep what is in memory bounded. Return how many samples get no name by that."""
        forgotten = [each for each in waiting if self._takes - self._since[each] >= MOST_TAKES]
        forgotten += [each for each in waiting[MOST_WAITING:] if each not in forgotten]
        if len(self._places) >= MOST_PLACES or len(self._stacks) >= MOST_STACKS:
            forgotten = list(waiting)
            self._forget_code()
        for each in forgotten:
            del self._since[each]
        return sum(map(self._samples.pop, forgotten))

    def _frame(self, place: Place, *, innermost: bool) -> StackFrame:
        found = self._frames.get((place, innermost))
        if found is None:
            identity, offset = place
            name = innermost_frame_at if innermost and offset != ANYWHERE else frame_at
            code = self._codes[identity]
            found = name(code, offset)
            if found.call:
                found = found._replace(call=with_package(found.call, code, self._modules.get(identity, "")))
            package_at = self._packages.place(code.co_filename) or 0
            if 0 < package_at < len(found.file):
                found = found._replace(package_at=package_at)
            self._frames[place, innermost] = found
        return found

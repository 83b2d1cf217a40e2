"""The labelled loads: their verdicts, and the lot that each belongs to.

A load is a function `load(run, device)` that trains until it is stopped. `# here` marks the line that holds
it back. Labels come from how a load is made, not from what hoptui says of it.
"""

from __future__ import annotations

import importlib.util
import inspect
import random
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Loop = Callable[[Any, str], None]
Lot = Literal["development", "test", "held-out", "held-out-cpu"]
MARK = "# here"
SEED = 24
"""Of the drawing of lots. Thresholds may only be set on the development lot."""
HELD_OUT = "held_out_"
"""Begins the names of the modules whose loads are the held-out lot."""
HELD_OUT_CPU = "held_out_cpu_"
"""Begins the names of the modules whose loads are the held-out lot of machines without a GPU."""
SEEN = "seen_"
"""Begins the names of the modules whose loads were the held-out lot once, and are development loads since."""


class AdapterRun(NamedTuple):
    """What a load gets whose run is made by the adapter of a framework: its name, and how long it may be."""

    name: str
    iterations: int = 1_000_000


class LabelledLoad(NamedTuple):
    """A load, and its right verdicts on a GPU and without one; empty where it cannot run.

    `ranks` processes work together: on the CPU under gloo, on as many GPUs under NCCL. The other ranks wait
    for rank `late`. A load runs where the packages of `needs` are installed. With `adapter` it gets an
    `AdapterRun`, and the adapter connects.
    """

    name: str
    loop: Loop
    gpu: tuple[str, ...]
    cpu: tuple[str, ...]
    ranks: int = 1
    needs: tuple[str, ...] = ()
    adapter: bool = False
    late: int | None = None

    def missing(self) -> list[str]:
        """Return the packages that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    @property
    def module(self) -> str:
        """The name of its module, without the packages."""
        return self.loop.__module__.rpartition(".")[2]

    @property
    def held_out(self) -> bool:
        """Whether its module says that it is in a held-out lot."""
        return self.module.startswith(HELD_OUT)

    @property
    def seen(self) -> bool:
        """Whether its module says that it was in the held-out lot."""
        return self.module.startswith(SEEN)

    @property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """The marked lines, as file and line."""
        source, first = inspect.getsourcelines(inspect.unwrap(self.loop))
        file = inspect.getsourcefile(self.loop) or ""
        marked = [(file, first + i) for i, text in enumerate(source) if MARK in text]
        for helper in HELPERS.get(self.name, ()):
            source, first = inspect.getsourcelines(helper)
            marked += [(file, first + i) for i, text in enumerate(source) if MARK in text]
        return tuple(marked)


LOADS: dict[str, LabelledLoad] = {}
HELPERS: dict[str, tuple[Callable[..., object] | type, ...]] = {}
"""Functions and classes beside a load that have marked lines."""


def labelled(
    *,
    gpu: str = "",
    cpu: str = "",
    ranks: int = 1,
    helpers: tuple[Callable[..., object] | type, ...] = (),
    needs: tuple[str, ...] = (),
    adapter: bool = False,
    late: int | None = None,
) -> Callable[[Loop], Loop]:
    """Enter a load. Several verdicts that are right are separated by spaces."""

    def enter(loop: Loop) -> Loop:
        name = loop.__name__
        right = tuple(gpu.split()), tuple(cpu.split())
        LOADS[name] = LabelledLoad(name, loop, *right, ranks, needs, adapter, late)
        HELPERS[name] = helpers
        return loop

    return enter


def lot_of(name: str) -> Lot:
    """Return the lot of a load. Half of the loads that never were held out are drawn by their names."""
    if LOADS[name].held_out:
        return "held-out-cpu" if LOADS[name].module.startswith(HELD_OUT_CPU) else "held-out"
    if LOADS[name].seen:
        return "development"
    names = sorted(each.name for each in LOADS.values() if not (each.held_out or each.seen))
    drawn = random.Random(SEED).sample(names, len(names) // 2)
    return "development" if name in drawn else "test"


def all_loads() -> dict[str, LabelledLoad]:
    """Return every load by its name."""
    from benchmarks.labelled import (  # noqa: F401
        device_loads,
        gpu_loads,
        held_out_cities_even,
        held_out_cities_late,
        host_loads,
        input_loads,
        rank_loads,
        seen_cpu_agriculture,
        seen_cpu_aviation,
        seen_cpu_couples_even,
        seen_cpu_couples_late,
        seen_cpu_energy,
        seen_cpu_epidemics,
        seen_cpu_finance,
        seen_cpu_genomics,
        seen_cpu_geology,
        seen_cpu_linguistics,
        seen_cpu_manufacturing,
        seen_cpu_museums,
        seen_cpu_pairs_even,
        seen_cpu_pairs_late,
        seen_cpu_ranks_even,
        seen_cpu_ranks_late,
        seen_cpu_robots,
        seen_cpu_security,
        seen_cpu_sports,
        seen_cpu_telecoms,
        seen_cpu_threads,
        seen_cpu_threads_beside,
        seen_cpu_wildlife,
        seen_domain_agents,
        seen_domain_language,
        seen_domain_recommendation,
        seen_domain_science,
        seen_domain_vision,
        seen_environments,
        seen_fields_graphs,
        seen_fields_language,
        seen_fields_markets,
        seen_fields_medicine,
        seen_fields_pairs_even,
        seen_fields_pairs_late,
        seen_fields_robotics,
        seen_gpu,
        seen_host,
        seen_input,
        seen_installed_adapters,
        seen_installed_agents,
        seen_installed_generative,
        seen_installed_graphs,
        seen_installed_lightning,
        seen_installed_ranks,
        seen_installed_transformers,
        seen_installed_vision,
        seen_mixed_agents,
        seen_mixed_backward,
        seen_mixed_device,
        seen_mixed_host,
        seen_mixed_input,
        seen_package_accelerate,
        seen_package_diffusion,
        seen_package_graphs,
        seen_package_gymnasium,
        seen_package_lightning,
        seen_package_sb3,
        seen_package_timm,
        seen_package_torchvision,
        seen_package_transformers,
        seen_package_tutorials,
        seen_public_gpu,
        seen_public_host,
        seen_public_input,
        seen_public_rl,
        seen_public_saving,
        seen_research_control,
        seen_research_federations,
        seen_research_images,
        seen_research_physics,
        seen_research_ranks_even,
        seen_research_ranks_late,
        seen_research_speech,
        seen_research_tables,
        seen_research_texts,
        seen_sector_courts,
        seen_sector_plasmas,
        seen_sector_railways,
        seen_sector_schools,
        seen_sector_textiles,
        seen_topic_astronomy,
        seen_topic_audio,
        seen_topic_chemistry,
        seen_topic_climate,
        seen_topic_logistics,
        seen_topic_ranks_even,
        seen_topic_ranks_late,
        seen_trade_archaeology,
        seen_trade_broadcasting,
        seen_trade_forestry,
        seen_trade_insurance,
        seen_trade_materials,
        seen_unnamed_environments,
        seen_unnamed_games,
        seen_unnamed_gpu,
        seen_unnamed_host,
        seen_unnamed_input,
        seen_unnamed_saving,
    )

    return LOADS

"""`ata`: the command line. Each command's module is imported when that command is used, and not before."""

from __future__ import annotations

from ai_trains_ai.cli.group import AtaGroup

main = AtaGroup(
    name="ata",
    help="Nested reinforcement learning: an agent learns to write training jobs for small models.",
    lazy={
        "demo": ("ai_trains_ai.cli.demo:demo", "Three training jobs side by side: good, mediocre, broken."),
        "job": ("ai_trains_ai.cli.job:job", "Make, check and run a training job."),
        "baseline": ("ai_trains_ai.cli.baseline:baseline", "What the untrained bases score."),
        "families": ("ai_trains_ai.cli.families:families", "The task families."),
        "pretrain": ("ai_trains_ai.cli.pretrain:pretrain", "Build a tiny base from its recipe."),
        "tinker-server": (
            "ai_trains_ai.cli.tinker_server:tinker_server",
            "A local server for the tinker SDK: LoRA training and sampling.",
        ),
        "doctor": ("ai_trains_ai.cli.doctor:doctor", "Is this machine ready, and if not, what to do."),
    },
)

"""Keys and groups that had other names in the release before: whoever uses one is told the new name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["RENAMED", "exit_if_renamed", "new_name"]

METRICS = "evaluation@callbacks.evaluation.metrics"
# Experiments that are a command of another one now.
EXPERIMENTS = {
    "bism_fig3_direct": "bism_fig3 method=bidsm,bissm hypergradient=none",
    "bism_fig3_plain": "bism_fig3 method=bissm hypergradient=unroll_plain hypergradient.step_size=5.0",
    "bism_table1_dsm": "bism_fig8 method=dsm model.h_dim=400",
    "bism_fig8_dsm": "bism_fig8 method=dsm",
    "grbm_checkerboard": "bism_fig3 method=dsm,ssm,ksd,is_ksd,bidsm,bissm,vages_dsm,vages_ksd,cd,pcd,nce,vnce",
    "vages_fig2_exact": "bism_fig3 method=ksd",
    "vages_fisher_residual": "vages_fisher method.residual=true",
    "bism_celeba64": "vages_cifar10 method=bimdsm data=celeba64",
    "vages_celeba64": "vages_cifar10 data=celeba64",
    "vages_table3_depth": "vages_cifar10 model.network.n_blocks=2,3,4",
    "vages_table3_noise": "vages_cifar10 particles.noise_std=1.0e-4,1.0e-3,1.0e-2",
    "vages_table3_particles": "vages_cifar10 score.n_particles=2,5,10",
    "vages_mnist_small": "bimdsm_mnist_small method=vages_mdsm",
    "bidvl_ablation_decoupled": "bidvl_table5 ratio.scale=0.05,0.0",
    "bidvl_table5_small": "bidvl_sweeps_small ratio.scale=0.01,0.05,0.1,0.5,1.0",
    "bidvl_table6": "bidvl_table5 ratio.scale=0.05 loss=no_latent,offset_latent,full_latent",
    "bidvl_table6_small": "bidvl_sweeps_small loss=no_latent,offset_latent,full_latent",
    "bism_fig7": "bism_table1 method.n_unroll=5 method.n_lower_steps=0,1,5,10",
    "vages_fig2": (
        "bism_fig3 method=vages_ksd,is_ksd objective.pairs=halves,one_sided score.n_particles=2,5,10 n_validations=10"
    ),
    "vages_fig7": "bism_fig3 method=vages_dsm,vages_ksd estimate=vaes,control_variate n_validations=10",
    "vages_fig3_bism": (
        "bism_table1 method.n_unroll=0,2,5 method.n_lower_steps=1,2,3,4,5 method.n_particles=2,4,6,8,10 "
        "callbacks.evaluation.at_validation=[fisher,posterior,log_likelihood] "
        "callbacks.checkpoints.monitor=val/log_likelihood"
    ),
    "vages_table3_steps": (
        "vages_table3 sizes.h_dim_and_step=[50,1.0e-2] "
        "sizes.K_and_C=[0,0],[5,0],[0,5],[10,0],[5,5],[0,10],[15,0],[10,5],[5,10],[0,15]"
    ),
    "bidvl_ablation": "bidvl_table1 data=cifar10 method=bidvl model=joint_conv loss=symmetric_joint,canonical_joint",
    "bidvl_resnet": "bidvl_table1 data=cifar10 method=bidvl_resnet n_validations=20",
    "bidvl_ablation_small": "bidvl_sweeps_small model=joint_conv loss=symmetric_joint,canonical_joint "
    "trainer.max_steps=1000",
    "bidvl_ablation_decoupled_small": "bidvl_sweeps_small ratio.scale=0.05,0.0 trainer.max_steps=1000",
}
# Old key or choice of a group, and the new one. A key stands for all below it; None: there is none, nor any need of it.
RENAMED = {
    "select": "test_checkpoint",
    "weights": "eval_weights",
    "block": "iterations_per_batch",
    "data_law": "data_energy",
    "callbacks.evaluation.metrics.fisher_divergence.data_law": "data_energy",
    "contrast": "noise_distribution",
    "variant=offset": "loss=offset_latent",
    "variant=offset_latent": "loss=offset_latent loss.latent_weight=0.5",
    "variant=complete": "loss=full_latent",
    "variant=without": "loss=no_latent",
    "variant=joint": "loss=symmetric_joint",
    "variant=canonical": "loss=canonical_joint",
    "variant": "loss",
    "variant.gap": "loss.critic_loss",
    "ratio.basic": "ratio.scale",
    "method.hypergradient": "hypergradient",
    "model.head": "marginal_model.head",
    "default_chain": "chain",
    "default_particles": "particles",
    "latents": None,
    "hypergradient=neumann": "hypergradient=implicit hypergradient.solver=neumann hypergradient.step_size=0.01",
    "posterior=gaussian_conv5": (
        "posterior=gaussian_conv posterior.network.widths=[64,64,128,128,256] posterior.network.strides=[2,1,2,1,2]"
    ),
    "posterior=gaussian_residual": (
        "posterior=gaussian_mlp posterior.network._target_=eblvm_lit.networks.residual_mlp.ResidualMLP"
    ),
    "schedule@optimizer.schedule=constant": "final_lr=null",
    f"{METRICS}=images": f"{METRICS}=[out_of_distribution,probe]",
    "callbacks=hypergradient_bias": "experiment=bism_fig1",
    "callbacks=score_bias": "experiment=vages_bias",
    "trainer=cpu": "trainer.accelerator=cpu",
    "trainer=gpu": "trainer.accelerator=gpu",
    "trainer=ddp_cpu": "trainer.accelerator=cpu trainer.devices=2",
    **{f"experiment={old}": f"experiment={new}" for old, new in EXPERIMENTS.items()},
}


def new_name(override: str) -> str | None:
    """What to say about a key, or about a choice or value as on the command line; None where the name is no old one.

    Example:
        >>> new_name("variant=without")
        'variant=without is now loss=no_latent.'
        >>> new_name("method.hypergradient.n_terms=3")
        'method.hypergradient.n_terms is now hypergradient.n_terms.'
        >>> new_name("loss=no_latent") is None
        True
    """
    if override in RENAMED:
        old, new = override, RENAMED[override]
    else:
        old = override.partition("=")[0]
        known = [key for key in RENAMED if f"{old}.".startswith(f"{key}.")]
        if not known:
            return None
        longest = max(known, key=len)
        new = RENAMED[longest] and RENAMED[longest] + old.removeprefix(longest)
    return (
        f"{old} is gone: leave it out, the method says which model fits it." if new is None else f"{old} is now {new}."
    )


def exit_if_renamed(arguments: Sequence[str]) -> None:
    """End the process with a sentence and exit code 1 if the command line has an old name."""
    for argument in arguments:
        if not argument.startswith("-") and (sentence := new_name(argument.lstrip("+~"))):
            sys.exit(f"ERROR: {sentence}")
